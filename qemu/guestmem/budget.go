package guestmem

import (
	"fmt"
	"math"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Limit is how much may be mapped.
type Limit struct {
	Bytes uint64
	Maps  int
}

const tebi = 1 << 40

var (
	// NIC bounds all attachments of a NIC together: half of the address space, and half of the
	// mappings, that Linux gives a process.
	NIC = Limit{Bytes: 64 * tebi, Maps: 32000}
	// Attachment is the default for one of them: sixteen that take all they can leave the NIC
	// running, and fifteen leave room for others.
	Attachment = Limit{Bytes: 4 * tebi, Maps: 2000}
)

// Budget bounds what may be mapped. What is mapped of a part is mapped of the whole, too.
type Budget struct {
	of    string
	whole *Budget // nil: this is
	most  Limit

	mu      sync.Mutex
	used    Limit
	refused uint64
}

// NewBudget returns a budget for a whole. A name is for messages.
func NewBudget(of string, most Limit) *Budget { return &Budget{of: of, most: most} }

// Part returns a budget for a part of b, which may have some of it.
func (b *Budget) Part(of string, most Limit) *Budget {
	return &Budget{of: of, whole: b, most: most}
}

// Share is Part where each may have one of n parts.
func (b *Budget) Share(of string, n int) *Budget {
	return b.Part(of, Limit{b.most.Bytes / uint64(n), b.most.Maps / n})
}

// Usage is what is mapped now, and how often that was too much: of b itself and of its parts.
type Usage struct {
	Limit
	Refused uint64
}

// Usage returns what is charged.
func (b *Budget) Usage() Usage {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Usage{b.used, b.refused}
}

// charge is called before a mapping is made. The error wraps ENOSPC.
func (b *Budget) charge(bytes uint64) error {
	for at := b; at != nil; at = at.whole {
		if err := at.take(bytes); err != nil {
			for done := b; done != at; done = done.whole {
				done.refund(bytes)
			}
			for up := b; up != nil; up = up.whole {
				up.refuse()
			}
			return err
		}
	}
	return nil
}

func (b *Budget) take(bytes uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case bytes > b.most.Bytes-b.used.Bytes:
		return fmt.Errorf("%s of memory are too much for %s, which has %s mapped and may have %s; give the guest less memory, or raise nic.guest_memory: %w", inUnits(bytes), b.of, inUnits(b.used.Bytes), inUnits(b.most.Bytes), unix.ENOSPC)
	case b.used.Maps >= b.most.Maps:
		return fmt.Errorf("one more piece of memory is too many for %s, which has %d; give the guest its memory in fewer pieces: %w", b.of, b.used.Maps, unix.ENOSPC)
	}
	b.used.Bytes += bytes
	b.used.Maps++
	return nil
}

func (b *Budget) refund(bytes uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used.Bytes -= bytes
	b.used.Maps--
}

func (b *Budget) refuse() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused++
}

// release gives a charge back.
func (b *Budget) release(bytes uint64) {
	for at := b; at != nil; at = at.whole {
		at.refund(bytes)
	}
}

// inUnits writes a number of bytes for people.
func inUnits(n uint64) string {
	units := [...]string{"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	i := 0
	for ; n >= 1<<(10*(i+1)) && i+1 < len(units); i++ {
	}
	return strconv.FormatFloat(math.Ceil(float64(n)/float64(uint64(1)<<(10*i))*10)/10, 'f', -1, 64) + " " + units[i]
}

package guestmem

import (
	"fmt"
	"math"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Limit is an amount of mapped memory.
type Limit struct {
	Bytes uint64
	Maps  int
}

const tebi = 1 << 40

var (
	// NIC is the limit of all attachments of a NIC together: half of the address space and half of
	// the mappings that Linux gives a process.
	NIC = Limit{Bytes: 64 * tebi, Maps: 32000}
	// Attachment is the default limit of one attachment. Sixteen attachments that use all of it
	// leave the NIC running; fifteen leave room for others.
	Attachment = Limit{Bytes: 4 * tebi, Maps: 2000}
)

// Budget bounds the mapped memory. What is charged to a part is charged to the whole, too.
type Budget struct {
	of    string
	whole *Budget // nil: b is no part
	most  Limit

	mu      sync.Mutex
	used    Limit
	refused uint64
}

// NewBudget returns a budget that is no part of another. The name of is used in messages.
func NewBudget(of string, most Limit) *Budget { return &Budget{of: of, most: most} }

// Part returns a budget that is a part of b, with its own limit.
func (b *Budget) Part(of string, most Limit) *Budget {
	return &Budget{of: of, whole: b, most: most}
}

// Share returns a part of b whose limit is an n-th of b's.
func (b *Budget) Share(of string, n int) *Budget {
	return b.Part(of, Limit{b.most.Bytes / uint64(n), b.most.Maps / n})
}

// Usage is what is mapped now, and the number of mappings that were refused, by a budget and its
// parts.
type Usage struct {
	Limit
	Refused uint64
}

// Usage returns what is charged to b.
func (b *Budget) Usage() Usage {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Usage{b.used, b.refused}
}

// charge charges a mapping, before it is made. The error wraps ENOSPC.
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

// release takes back a charge.
func (b *Budget) release(bytes uint64) {
	for at := b; at != nil; at = at.whole {
		at.refund(bytes)
	}
}

// inUnits returns a number of bytes in words.
func inUnits(n uint64) string {
	units := [...]string{"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	i := 0
	for ; n >= 1<<(10*(i+1)) && i+1 < len(units); i++ {
	}
	return strconv.FormatFloat(math.Ceil(float64(n)/float64(uint64(1)<<(10*i))*10)/10, 'f', -1, 64) + " " + units[i]
}

// Mapping is a mapped part of a file.
type Mapping struct {
	Mem []byte // the bytes that were asked for

	pages  []byte // the whole pages around Mem
	budget *Budget
}

// Map maps size bytes of a file, from an offset on, as shared memory. The mapping is kept out of
// core dumps and of child processes.
func (b *Budget) Map(fd int, offset, size uint64, prot int) (*Mapping, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("fstat: %w", err)
	}
	if offset > math.MaxInt64 || size > math.MaxInt64-offset || uint64(st.Size) < offset+size {
		return nil, fmt.Errorf("%#x bytes at file offset %#x: the file has only %#x", size, offset, st.Size)
	}
	page := uint64(max(st.Blksize, 4096)) // on hugetlbfs the size of a huge page: such files can only be mapped in whole ones
	from := offset / page * page
	length := (offset + size - from + page - 1) / page * page
	if err := b.charge(length); err != nil {
		return nil, err
	}
	pages, err := unix.Mmap(fd, int64(from), int(length), prot, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		b.release(length)
		return nil, fmt.Errorf("mmap of %#x bytes at file offset %#x: %w", length, from, err)
	}
	_ = unix.Madvise(pages, unix.MADV_DONTDUMP)
	_ = unix.Madvise(pages, unix.MADV_DONTFORK)
	at := offset - from
	return &Mapping{Mem: pages[at : at+size : at+size], pages: pages, budget: b}, nil
}

// Unmap removes the mapping. Nothing may use its memory any more.
func (m *Mapping) Unmap() {
	if m.pages == nil {
		return
	}
	_ = unix.Munmap(m.pages)
	m.budget.release(uint64(len(m.pages)))
	m.pages, m.Mem = nil, nil
}

// Check returns an error unless the kernel itself provides a file's pages: it is a memfd, or on
// tmpfs or hugetlbfs. A page of another file comes from a disk or, on FUSE, from a program that may
// never answer, and an access to it waits.
//
// fstatfs(2) would name the file system, but FUSE asks its program for the answer. The kernel
// itself answers for seals, and only these two file systems have them.
func Check(fd int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil {
		return fmt.Errorf("the file is not on tmpfs or hugetlbfs, nor a memfd (%w); use -object memory-backend-memfd,share=on, or a mem-path in /dev/shm or on hugetlbfs", err)
	}
	return nil
}

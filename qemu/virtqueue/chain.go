package virtqueue

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/falcon-vnic/vnic/queues"
)

// MaxSegments is the largest number of memory segments, and of descriptors, of a chain; descriptors
// may be empty. Linux makes chains of up to 19 descriptors for a frame, DPDK one descriptor for
// each buffer of a frame.
const MaxSegments = 256

// Work is how much a device may still do for a guest in its turn. Each descriptor read costs one,
// and so does each further segment of a buffer that spans regions; the cost is charged in advance.
// A turn that begins with at least MaxSegments makes progress with any ring.
type Work int

// errSpent means that the work of this turn is used up: the chain waits for the next turn.
var errSpent = errors.New("the turn is over")

// descLen is the length of a descriptor.
const descLen = 16

// Descriptor flags, Virtio §2.7.5 and §2.8.
const (
	flagNext     = 1 << 0
	flagWrite    = 1 << 1
	flagIndirect = 1 << 2
)

// Chain is a list of buffers that the driver made available.
type Chain struct {
	OutLen int // bytes for the device to read
	InLen  int // bytes for the device to write

	segs  [MaxSegments][]byte
	out   int // number of segs to read; those to write follow
	n     int // number of segs
	descs int // number of descriptors
}

// Out returns the buffers to read. Their content may change at any time.
func (c *Chain) Out() [][]byte { return c.segs[:c.out] }

// In returns the buffers to write.
func (c *Chain) In() [][]byte { return c.segs[c.out:c.n] }

func (c *Chain) reset() { c.OutLen, c.InLen, c.out, c.n, c.descs = 0, 0, 0, 0, 0 }

// next charges and counts a descriptor. It is called before the descriptor is read, for each one of
// every frame, so it is short enough for the compiler to inline it.
func (c *Chain) next(w *Work) error {
	if *w <= 0 || c.descs == MaxSegments {
		return w.refuses()
	}
	*w--
	c.descs++
	return nil
}

// refuses returns why a chain gets no further descriptor.
func (w *Work) refuses() error {
	if *w <= 0 {
		return errSpent
	}
	return fmt.Errorf("%w: a chain has more than %d descriptors", ErrRing, MaxSegments)
}

// add appends the buffer of one descriptor. A buffer that spans regions becomes several segments.
func (c *Chain) add(mem *RAM, addr uint64, size uint32, write bool, w *Work) error {
	if !write && c.n > c.out {
		return fmt.Errorf("%w: a chain has a buffer to read behind one to write", ErrRing)
	}
	for size > 0 {
		b := mem.at(addr)
		if len(b) == 0 {
			return fmt.Errorf("%w: a buffer of %d bytes at %#x is not in the guest's memory", ErrRing, size, addr)
		}
		if c.n == MaxSegments {
			return fmt.Errorf("%w: a chain has more than %d buffers", ErrRing, MaxSegments)
		}
		k := min(uint64(size), uint64(len(b)))
		c.segs[c.n] = b[:k:k]
		c.n++
		if write {
			c.InLen += int(k)
		} else {
			c.out++
			c.OutLen += int(k)
		}
		addr += k
		size -= uint32(k)
		if size == 0 {
			return nil
		}
		if addr == 0 {
			return fmt.Errorf("%w: a buffer passes the end of all addresses", ErrRing)
		}
		if *w <= 0 {
			return errSpent
		}
		*w--
	}
	return nil
}

// enter is called before an indirect table is read. The descriptor that names the table does not
// count as one of the chain.
func (c *Chain) enter() { c.descs-- }

// table returns an indirect table of descriptors.
func table(mem *RAM, addr uint64, size uint32) ([]byte, error) {
	if size == 0 || size%descLen != 0 || size/descLen > MaxSize {
		return nil, fmt.Errorf("%w: an indirect table has %d bytes, want a multiple of %d", ErrRing, size, descLen)
	}
	return mem.slice(addr, uint64(size))
}

// descriptor is a copy of a descriptor.
type descriptor struct {
	addr uint64
	size uint32
	a, b uint16 // split: flags, next; packed: id, flags
}

func readDesc(b []byte) descriptor {
	_ = b[descLen-1]
	return descriptor{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint16(b[12:]), binary.LittleEndian.Uint16(b[14:])}
}

// RAM is the guest's memory by guest-physical address. The zero value has none.
type RAM struct {
	regions []queues.Region // sorted by address, disjoint
	base    uint64          // address of last
	last    []byte          // region of the last access
	touched [2]byte         // keeps the compiler from removing the loads of touch
}

// Set replaces the regions. Slices of the old regions must not be used any more.
func (m *RAM) Set(regions []queues.Region) {
	m.regions = slices.Clone(regions)
	slices.SortFunc(m.regions, func(a, b queues.Region) int { return cmp.Compare(a.Addr, b.Addr) })
	m.base, m.last = 0, nil
}

// at returns the memory from addr to the end of its region, or nil if addr is in no region. Like
// next it is short enough to be inlined.
func (m *RAM) at(addr uint64) []byte {
	if addr-m.base < uint64(len(m.last)) {
		return m.last[addr-m.base:]
	}
	return m.find(addr)
}

func (m *RAM) find(addr uint64) []byte {
	i, here := slices.BinarySearchFunc(m.regions, addr, func(r queues.Region, a uint64) int { return cmp.Compare(r.Addr, a) })
	if !here {
		i--
	}
	if i < 0 || addr-m.regions[i].Addr >= uint64(len(m.regions[i].Mem)) {
		return nil
	}
	m.base, m.last = m.regions[i].Addr, m.regions[i].Mem
	return m.last[addr-m.base:]
}

// Faulted reports whether a recovered panic is a fault in this memory.
func (m *RAM) Faulted(r any) bool {
	fault, ok := r.(interface{ Addr() uintptr })
	if !ok {
		return false
	}
	return slices.ContainsFunc(m.regions, func(r queues.Region) bool { return within(r.Mem, fault.Addr()) })
}

// touch loads the first two cache lines of a buffer: about the length of a frame's headers.
func (m *RAM) touch(addr uint64) {
	if b := m.at(addr); len(b) > cacheLine {
		m.touched = [2]byte{b[0], b[cacheLine]}
	}
}

const (
	cacheLine = 64
	fetched   = 16 // number of chains that are prefetched at once
)

// slice returns n bytes at addr, which must lie in one region.
func (m *RAM) slice(addr, n uint64) ([]byte, error) {
	b := m.at(addr)
	if uint64(len(b)) < n {
		return nil, fmt.Errorf("%w: %d bytes at %#x are not in the guest's memory", ErrRing, n, addr)
	}
	return b[:n:n], nil
}

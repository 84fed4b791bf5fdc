package virtqueue

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/falcon-vnic/vnic/queues"
)

// RAM is the guest's memory by guest-physical address. The zero value has none.
type RAM struct {
	regions []queues.Region // sorted by address, disjoint
	last    int             // region of the last access
	touched [2]byte         // keeps the compiler from removing the loads of touch
}

// Set replaces the regions. Slices of the old regions must not be used any more.
func (m *RAM) Set(regions []queues.Region) {
	m.regions = slices.Clone(regions)
	slices.SortFunc(m.regions, func(a, b queues.Region) int { return cmp.Compare(a.Addr, b.Addr) })
	m.last = 0
}

// at returns the memory from addr to the end of its region, or nil if addr is in no region.
func (m *RAM) at(addr uint64) []byte {
	if m.last < len(m.regions) {
		if r := &m.regions[m.last]; addr >= r.Addr && addr-r.Addr < uint64(len(r.Mem)) {
			return r.Mem[addr-r.Addr:]
		}
	}
	i, here := slices.BinarySearchFunc(m.regions, addr, func(r queues.Region, a uint64) int { return cmp.Compare(r.Addr, a) })
	if !here {
		i--
	}
	if i < 0 || addr-m.regions[i].Addr >= uint64(len(m.regions[i].Mem)) {
		return nil
	}
	m.last = i
	return m.regions[i].Mem[addr-m.regions[i].Addr:]
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

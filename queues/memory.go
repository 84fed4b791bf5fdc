package queues

import (
	"cmp"
	"slices"
)

// Memory is the memory of one function: device addresses mapped to the host,
// as far as they lie in the function's DMA window. It belongs to one goroutine.
// The zero value maps nothing.
type Memory struct {
	regions []Region // sorted by Addr, disjoint, none empty
	last    int      // region of the last access
	window  Window
}

// Window is a range of device addresses. One of no bytes stands for all
// addresses.
type Window struct {
	Addr, Size uint64
}

// cut returns the part of r that lies in the window.
func (w Window) cut(r Region) Region {
	if w.Size == 0 {
		return r
	}
	if r.Addr < w.Addr {
		n := min(w.Addr-r.Addr, uint64(len(r.Mem)))
		r.Addr, r.Mem = r.Addr+n, r.Mem[n:]
	}
	left := uint64(0) // of the window, from r.Addr on
	if off := r.Addr - w.Addr; r.Addr >= w.Addr && off < w.Size {
		left = w.Size - off
	}
	r.Mem = r.Mem[:min(left, uint64(len(r.Mem))):len(r.Mem)]
	return r
}

// NewMemory returns a Memory of regions; see SetRegions.
func NewMemory(regions []Region) *Memory { return NewWindowed(Window{}, regions) }

// NewWindowed returns a Memory of the parts of regions that lie in the window,
// which holds for its life.
func NewWindowed(w Window, regions []Region) *Memory {
	m := &Memory{window: w}
	m.SetRegions(regions)
	return m
}

// SetRegions replaces the regions; regions is copied. A region that is empty,
// passes 2^64, overlaps one before it in the order of addresses or lies
// outside the window is left out: accesses to it fail.
func (m *Memory) SetRegions(regions []Region) {
	sorted := slices.Clone(regions)
	byAddress := func(a, b Region) int { return cmp.Compare(a.Addr, b.Addr) }
	if !slices.IsSortedFunc(sorted, byAddress) { // of many, most often they are
		slices.SortStableFunc(sorted, byAddress)
	}
	kept := sorted[:0]
	for _, r := range sorted {
		n := uint64(len(r.Mem))
		if n == 0 || n-1 > ^uint64(0)-r.Addr {
			continue
		}
		if k := len(kept); k > 0 && r.Addr-kept[k-1].Addr < uint64(len(kept[k-1].Mem)) {
			continue
		}
		kept = append(kept, r)
	}
	inside := kept[:0]
	for _, r := range kept {
		if r = m.window.cut(r); len(r.Mem) > 0 {
			inside = append(inside, r)
		}
	}
	kept = inside
	clear(sorted[len(kept):]) // hold on to no mapping that is not used
	m.regions, m.last = kept, 0
}

// Window returns the window it was made with.
func (m *Memory) Window() Window { return m.window }

// Range returns the i-th range of mapped addresses, in ascending order and as large as
// they come, and how many there are. A range of no bytes says that there is no i-th.
func (m *Memory) Range(i int) (w Window, ranges int) {
	var last Window
	take := func() {
		if last.Size > 0 {
			if ranges == i {
				w = last
			}
			ranges++
		}
	}
	for _, r := range m.regions {
		if last.Size > 0 && last.Addr+last.Size == r.Addr {
			last.Size += uint64(len(r.Mem))
			continue
		}
		take()
		last = Window{r.Addr, uint64(len(r.Mem))}
	}
	take()
	return w, ranges
}

// find returns the region that holds addr and the offset in it.
func (m *Memory) find(addr uint64) (*Region, uint64, bool) {
	if m.last < len(m.regions) {
		r := &m.regions[m.last]
		if off := addr - r.Addr; addr >= r.Addr && off < uint64(len(r.Mem)) {
			return r, off, true
		}
	}
	lo, hi := 0, len(m.regions)
	for lo < hi { // first region that starts after addr
		mid := int(uint(lo+hi) / 2)
		if m.regions[mid].Addr <= addr {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return nil, 0, false
	}
	r := &m.regions[lo-1]
	off := addr - r.Addr
	if off >= uint64(len(r.Mem)) {
		return nil, 0, false
	}
	m.last = lo - 1
	return r, off, true
}

// Contains reports whether n bytes at addr are mapped. No bytes are mapped
// everywhere.
func (m *Memory) Contains(addr, n uint64) bool {
	for n > 0 {
		r, off, ok := m.find(addr)
		if !ok {
			return false
		}
		here := uint64(len(r.Mem)) - off
		if n <= here {
			return true
		}
		n -= here
		addr += here
		if addr == 0 { // passed 2^64
			return false
		}
	}
	return true
}

// Read copies guest memory at addr to dst. The bytes may span adjacent
// regions; when not all are mapped none is copied. Errors are *FaultError.
func (m *Memory) Read(addr uint64, dst []byte) error { return m.copy(addr, dst, false) }

// Write copies src to guest memory at addr, as Read does in the other
// direction.
func (m *Memory) Write(addr uint64, src []byte) error { return m.copy(addr, src, true) }

// copy moves b to guest memory, or guest memory to b.
func (m *Memory) copy(addr uint64, b []byte, write bool) error {
	if len(b) == 0 {
		return nil
	}
	r, off, ok := m.find(addr)
	if !ok {
		return fault(addr, len(b), WhyUnmapped)
	}
	if uint64(len(b)) <= uint64(len(r.Mem))-off {
		if !guardedCopy(r.Mem[off:], b, write) {
			return fault(addr, len(b), WhyBroken)
		}
		return nil
	}
	if !m.Contains(addr, uint64(len(b))) {
		return fault(addr, len(b), WhyUnmapped)
	}
	for at := addr; len(b) > 0; {
		r, off, _ := m.find(at)
		n := min(uint64(len(b)), uint64(len(r.Mem))-off)
		if !guardedCopy(r.Mem[off:], b[:n], write) {
			return fault(at, int(n), WhyBroken)
		}
		at, b = at+n, b[n:]
	}
	return nil
}

// word returns the size bytes at addr, which must lie in one region.
func (m *Memory) word(addr uint64, size int) ([]byte, error) {
	r, off, ok := m.find(addr)
	if !ok || uint64(size) > uint64(len(r.Mem))-off {
		return nil, fault(addr, size, WhyUnmapped)
	}
	b := r.Mem[off:][:size:size]
	if addr%uint64(size) != 0 || !aligned(b) {
		return nil, fault(addr, size, WhyMisaligned)
	}
	return b, nil
}

// Load32 loads the little-endian word at addr, which must be a multiple of 4.
// It is atomic and sequentially consistent, as are all methods below. Errors
// are *FaultError.
func (m *Memory) Load32(addr uint64) (uint32, error) {
	b, err := m.word(addr, 4)
	if err != nil {
		return 0, err
	}
	v, ok := guardedLoad32(b)
	if !ok {
		return 0, fault(addr, 4, WhyBroken)
	}
	return v, nil
}

// Load64 loads the double word at addr, which must be a multiple of 8.
func (m *Memory) Load64(addr uint64) (uint64, error) {
	b, err := m.word(addr, 8)
	if err != nil {
		return 0, err
	}
	v, ok := guardedLoad64(b)
	if !ok {
		return 0, fault(addr, 8, WhyBroken)
	}
	return v, nil
}

// Store32 stores the word at addr, which must be a multiple of 4.
func (m *Memory) Store32(addr uint64, v uint32) error {
	b, err := m.word(addr, 4)
	if err != nil {
		return err
	}
	if !guardedStore32(b, v) {
		return fault(addr, 4, WhyBroken)
	}
	return nil
}

// Store64 stores the double word at addr, which must be a multiple of 8.
func (m *Memory) Store64(addr, v uint64) error {
	b, err := m.word(addr, 8)
	if err != nil {
		return err
	}
	if !guardedStore64(b, v) {
		return fault(addr, 8, WhyBroken)
	}
	return nil
}

// CompareAndSwap64 stores new at addr if the double word there equals old,
// and returns what was there. addr must be a multiple of 8.
func (m *Memory) CompareAndSwap64(addr, old, new uint64) (prev uint64, err error) {
	b, err := m.word(addr, 8)
	if err != nil {
		return 0, err
	}
	prev, res := guardedSwap64(b, old, new)
	switch res {
	case swapBroken:
		return 0, fault(addr, 8, WhyBroken)
	case swapContended:
		return 0, fault(addr, 8, WhyContended)
	}
	return prev, nil
}

// FetchAdd64 adds delta to the double word at addr, modulo 2^64, and returns
// what was there. addr must be a multiple of 8.
func (m *Memory) FetchAdd64(addr, delta uint64) (prev uint64, err error) {
	b, err := m.word(addr, 8)
	if err != nil {
		return 0, err
	}
	prev, ok := guardedAdd64(b, delta)
	if !ok {
		return 0, fault(addr, 8, WhyBroken)
	}
	return prev, nil
}

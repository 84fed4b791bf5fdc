package queues

import "github.com/falcon-vnic/vnic/internal/tape"

// Memory is the memory of one function: device addresses mapped to host memory, as far as they lie
// in the function's DMA window. It belongs to one goroutine. The zero value maps nothing.
type Memory struct {
	regions Regions
	last    Region // region of the last access, cut to the window
	window  Window
	tape    *tape.Tape // records accesses, or stands for the memory; nil: neither
	number  uint32     // on the tape
}

// Window is a range of device addresses. A size of 0 means all addresses.
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
	left := uint64(0) // part of the window from r.Addr on
	if off := r.Addr - w.Addr; r.Addr >= w.Addr && off < w.Size {
		left = w.Size - off
	}
	r.Mem = r.Mem[:min(left, uint64(len(r.Mem))):len(r.Mem)]
	return r
}

// holds reports whether an address lies in the window.
func (w Window) holds(addr uint64) bool {
	return w.Size == 0 || addr >= w.Addr && addr-w.Addr < w.Size
}

// NewMemory returns a Memory of regions; see NewRegions.
func NewMemory(regions []Region) *Memory { return NewWindowed(Window{}, regions) }

// NewWindowed returns a Memory of the parts of regions that lie in the window. The window never
// changes.
func NewWindowed(w Window, regions []Region) *Memory {
	return &Memory{window: w, regions: NewRegions(regions)}
}

// SetRegions replaces the regions; see NewRegions.
func (m *Memory) SetRegions(regions []Region) { m.Use(NewRegions(regions)) }

// Use replaces the regions. It takes the same time for any number of them.
func (m *Memory) Use(regions Regions) { m.regions, m.last = regions, Region{} }

// Window returns the window that the Memory was made with.
func (m *Memory) Window() Window { return m.window }

// Range returns the i-th maximal range of mapped addresses, in ascending order, and the number of
// ranges. A range of size 0 means that there is no i-th.
func (m *Memory) Range(i int) (w Window, ranges int) {
	w, ranges = m.regions.Range(m.window, i)
	if m.tape != nil {
		w.Addr, w.Size = m.tape.Number(tape.MemRange, w.Addr), m.tape.Number(tape.MemRange, w.Size)
		ranges = int(m.tape.Number(tape.MemRange, uint64(ranges)))
	}
	return w, ranges
}

// from returns the mapped memory from addr to the end of its region, nil if addr is not mapped.
func (m *Memory) from(addr uint64) []byte {
	if off := addr - m.last.Addr; off < uint64(len(m.last.Mem)) { // an address before the region gives an offset past its end
		return m.last.Mem[off:]
	}
	return m.look(addr)
}

// look does what from does when the region is not that of the last access.
func (m *Memory) look(addr uint64) []byte {
	r := m.window.cut(m.regions.at(addr))
	off := addr - r.Addr
	if off >= uint64(len(r.Mem)) {
		return nil
	}
	m.last = r
	return r.Mem[off:]
}

// Contains reports whether n bytes at addr are mapped. It is true for 0 bytes at any address.
func (m *Memory) Contains(addr, n uint64) bool {
	is := m.contains(addr, n)
	if m.tape != nil {
		m.tape.Place(m.number, addr, n)
		is = m.tape.Bool(tape.MemHas, is)
	}
	return is
}

func (m *Memory) contains(addr, n uint64) bool {
	for n > 0 {
		here := uint64(len(m.from(addr)))
		if here == 0 {
			return false
		}
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

// Read copies guest memory at addr to dst. The bytes may span adjacent regions. If not all are
// mapped, none is copied. Errors are *FaultError.
func (m *Memory) Read(addr uint64, dst []byte) error {
	err := m.copy(addr, dst, false)
	if m.tape != nil {
		err = m.tapeRead(addr, dst, nil, err)
	}
	return err
}

// Write copies src to guest memory at addr, with the rules of Read.
func (m *Memory) Write(addr uint64, src []byte) error {
	err := m.copy(addr, src, true)
	if m.tape != nil {
		err = m.tapeWrite(addr, src, nil, err)
	}
	return err
}

// copy copies b to guest memory if write is set, else guest memory to b.
func (m *Memory) copy(addr uint64, b []byte, write bool) error {
	if len(b) == 0 {
		return nil
	}
	mem := m.from(addr)
	if mem == nil {
		return fault(addr, len(b), WhyUnmapped)
	}
	if len(b) <= len(mem) {
		if !guardedCopy(mem, b, write) {
			return fault(addr, len(b), WhyBroken)
		}
		return nil
	}
	if !m.contains(addr, uint64(len(b))) {
		return fault(addr, len(b), WhyUnmapped)
	}
	for at := addr; len(b) > 0; {
		mem := m.from(at)
		n := min(len(b), len(mem))
		if !guardedCopy(mem, b[:n], write) {
			return fault(at, n, WhyBroken)
		}
		at, b = at+uint64(n), b[n:]
	}
	return nil
}

// word returns the size bytes at addr, which must lie in one region.
func (m *Memory) word(addr uint64, size int) ([]byte, error) {
	b := m.from(addr)
	if size > len(b) {
		return nil, fault(addr, size, WhyUnmapped)
	}
	b = b[:size:size]
	if addr%uint64(size) != 0 || !aligned(b) {
		return nil, fault(addr, size, WhyMisaligned)
	}
	return b, nil
}

// Load32 loads the little-endian word at addr, which must be a multiple of 4.
// It is atomic and sequentially consistent, as are all methods below. Errors
// are *FaultError.
func (m *Memory) Load32(addr uint64) (uint32, error) {
	v, err := m.load32(addr)
	if m.tape != nil {
		var is uint64
		is, err = m.tapeLoad(tape.MemLoad, addr, uint64(v), err)
		v = uint32(is)
	}
	return v, err
}

func (m *Memory) load32(addr uint64) (uint32, error) {
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
	v, err := m.load64(addr)
	if m.tape != nil {
		v, err = m.tapeLoad(tape.MemLoad, addr, v, err)
	}
	return v, err
}

func (m *Memory) load64(addr uint64) (uint64, error) {
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
	err := m.store32(addr, v)
	if m.tape != nil {
		err = m.tapeStore(addr, uint64(v), false, err)
	}
	return err
}

func (m *Memory) store32(addr uint64, v uint32) error {
	b, err := m.word(addr, 4)
	if err != nil {
		return err
	}
	if !guardedStore32(b, v) {
		return fault(addr, 4, WhyBroken)
	}
	return nil
}

func (m *Memory) store64(addr, v uint64) error {
	b, err := m.word(addr, 8)
	if err != nil {
		return err
	}
	if !guardedStore64(b, v) {
		return fault(addr, 8, WhyBroken)
	}
	return nil
}

// CompareAndSwap64 stores new at addr if the double word there equals old, and returns the previous
// value. addr must be a multiple of 8.
func (m *Memory) CompareAndSwap64(addr, old, new uint64) (prev uint64, err error) {
	prev, err = m.compareAndSwap64(addr, old, new)
	if m.tape != nil {
		m.tape.OutUint(tape.Writes, new)
		prev, err = m.tapeLoad(tape.MemSwap, addr, prev, err)
	}
	return prev, err
}

func (m *Memory) compareAndSwap64(addr, old, new uint64) (prev uint64, err error) {
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

// FetchAdd64 adds delta to the double word at addr, modulo 2^64, and returns the previous value.
// addr must be a multiple of 8.
func (m *Memory) FetchAdd64(addr, delta uint64) (prev uint64, err error) {
	prev, err = m.fetchAdd64(addr, delta)
	if m.tape != nil {
		m.tape.OutUint(tape.Writes, delta)
		prev, err = m.tapeLoad(tape.MemAdd, addr, prev, err)
	}
	return prev, err
}

func (m *Memory) fetchAdd64(addr, delta uint64) (prev uint64, err error) {
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

package queues

import (
	"fmt"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// Area is a range of bytes that is contiguous for the guest but scattered over the pages of a list:
// a queue, or a memory region. Offsets count from its first byte. Like its Memory it belongs to one
// goroutine.
type Area struct {
	mem    *Memory
	pages  PageList
	start  uint64 // offset of the first byte in the first page
	length uint64 // bytes

	// Head returns how many bytes at the beginning of what one call reads or writes are no payload;
	// nil: all of them. It is for recordings.
	Head func(b []byte) int
}

// Data is the Head of memory regions, which hold nothing but payload.
func Data([]byte) int { return 0 }

var _ ring.Bytes = (*Area)(nil)

// NewArea returns the area of a span on pages. The error wraps ErrPageList if there are too few
// pages, or pages of another size.
func NewArea(mem *Memory, pages PageList, span Span) (*Area, error) {
	need := span.Pages()
	if need == 0 || need > pages.Pages() || span.Shift() != pages.shift {
		return nil, fmt.Errorf("%w: %d pages of 2^%d bytes do not hold %d bytes at offset %d", ErrPageList, pages.Pages(), pages.shift, span.Length, span.Offset)
	}
	return &Area{mem: mem, pages: pages, start: uint64(span.Offset), length: span.Length}, nil
}

// ReadArea copies a page list from guest memory and returns the area over it. It is the usual way
// to make an area from a command's parameters.
func ReadArea(mem *Memory, root uint64, levels int, span Span) (*Area, error) {
	pages, err := ReadPageList(mem, root, levels, span)
	if err != nil {
		return nil, err
	}
	return NewArea(mem, pages, span)
}

// Direct returns the area whose offsets are device addresses: all memory that mem maps, now and
// later.
func Direct(mem *Memory) *Area {
	return &Area{mem: mem, pages: PageList{shift: abi.MinPageShift, n: 1 << 51, straight: 1 << 51}, length: 1<<63 - 1}
}

// Len returns the bytes of the area.
func (a *Area) Len() uint64 { return a.length }

// Footprint returns the bytes of host memory that the area's page list takes.
func (a *Area) Footprint() int { return a.pages.Footprint() }

// checkRange returns an error unless n bytes at off lie in the area.
func (a *Area) checkRange(off uint64, n int) error {
	if off > a.length || uint64(n) > a.length-off {
		return fault(off, n, WhyOutside)
	}
	return nil
}

// addr returns the device address of offset off and the number of contiguous bytes there. It counts
// no further than needed for want bytes.
func (a *Area) addr(off, want uint64) (addr, n uint64) {
	off += a.start
	shift := a.pages.shift & 63 // it is below 64, but the compiler does not know
	in := off & (1<<shift - 1)
	addr, n = a.pages.run(int(off>>shift), in+want)
	return addr + in, n - in
}

// ReadAt copies len(dst) bytes at off to dst. The errors of this and all methods below are
// *FaultError.
func (a *Area) ReadAt(off uint64, dst []byte) error {
	if err := a.checkRange(off, len(dst)); err != nil {
		return err
	}
	if a.mem.tape.Active() {
		return a.readTaped(off, dst)
	}
	for len(dst) > 0 {
		addr, n := a.addr(off, uint64(len(dst)))
		n = min(n, uint64(len(dst)))
		if err := a.mem.Read(addr, dst[:n]); err != nil {
			return err
		}
		off, dst = off+n, dst[n:]
	}
	return nil
}

// WriteAt copies src to off. If a page in the middle fails, the pages before it have been written.
func (a *Area) WriteAt(off uint64, src []byte) error {
	if err := a.checkRange(off, len(src)); err != nil {
		return err
	}
	for len(src) > 0 {
		addr, n := a.addr(off, uint64(len(src)))
		n = min(n, uint64(len(src)))
		err := a.mem.copy(addr, src[:n], true)
		if a.mem.tape != nil {
			err = a.mem.tapeWrite(addr, src[:n], a.Head, err)
		}
		if err != nil {
			return err
		}
		off, src = off+n, src[n:]
	}
	return nil
}

// word returns the device address of size bytes at off.
func (a *Area) word(off uint64, size int) (uint64, error) {
	if err := a.checkRange(off, size); err != nil {
		return 0, err
	}
	addr, n := a.addr(off, uint64(size))
	if n < uint64(size) {
		return 0, fault(addr, size, WhyMisaligned)
	}
	return addr, nil
}

// Load32 does what Memory.Load32 does, at off.
func (a *Area) Load32(off uint64) (uint32, error) {
	addr, err := a.word(off, 4)
	if err != nil {
		return 0, err
	}
	return a.mem.Load32(addr)
}

// Load64 does what Memory.Load64 does, at off.
func (a *Area) Load64(off uint64) (uint64, error) {
	addr, err := a.word(off, 8)
	if err != nil {
		return 0, err
	}
	return a.mem.Load64(addr)
}

// Store32 does what Memory.Store32 does, at off.
func (a *Area) Store32(off uint64, v uint32) error {
	addr, err := a.word(off, 4)
	if err != nil {
		return err
	}
	return a.mem.Store32(addr, v)
}

// Store64Release stores the double word at off, which must be a multiple of 8. Earlier writes are
// visible first.
func (a *Area) Store64Release(off, v uint64) error {
	addr, err := a.word(off, 8)
	if err != nil {
		return err
	}
	err = a.mem.store64(addr, v)
	if a.mem.tape != nil {
		err = a.mem.tapeStore(addr, v, a.Head != nil, err)
	}
	return err
}

// CompareAndSwap64 does what Memory.CompareAndSwap64 does, at off.
func (a *Area) CompareAndSwap64(off, old, new uint64) (prev uint64, err error) {
	addr, err := a.word(off, 8)
	if err != nil {
		return 0, err
	}
	return a.mem.CompareAndSwap64(addr, old, new)
}

// FetchAdd64 does what Memory.FetchAdd64 does, at off.
func (a *Area) FetchAdd64(off, delta uint64) (prev uint64, err error) {
	addr, err := a.word(off, 8)
	if err != nil {
		return 0, err
	}
	return a.mem.FetchAdd64(addr, delta)
}

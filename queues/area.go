package queues

import (
	"fmt"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// Area is a range of bytes that is contiguous for the guest and scattered
// over a page list: a queue, or a memory region. Offsets count from its first
// byte. Like its Memory it belongs to one goroutine.
type Area struct {
	mem    *Memory
	pages  PageList
	start  uint64 // offset of the first byte in the first page
	length uint64 // bytes
}

var _ ring.Bytes = (*Area)(nil)

// PagesFor returns the number of pages that length bytes starting at offset
// (less than a page) touch, or 0 when that is nothing or more than MaxPages.
func PagesFor(offset uint32, length uint64) int {
	if length == 0 || length > abi.MaxMRSize || offset >= abi.PageSize {
		return 0
	}
	return int((uint64(offset) + length + abi.PageSize - 1) / abi.PageSize)
}

// NewArea returns the area of length bytes that starts at offset in the first
// page of pages. The error wraps ErrPageList when pages is too short.
func NewArea(mem *Memory, pages PageList, offset uint32, length uint64) (*Area, error) {
	need := PagesFor(offset, length)
	if need == 0 || need > pages.Pages() {
		return nil, fmt.Errorf("%w: %d pages do not hold %d bytes at offset %d", ErrPageList, pages.Pages(), length, offset)
	}
	return &Area{mem: mem, pages: pages, start: uint64(offset), length: length}, nil
}

// ReadArea copies a page list from guest memory and returns the area over it:
// the usual way to make one from a command's parameters.
func ReadArea(mem *Memory, root uint64, levels int, offset uint32, length uint64) (*Area, error) {
	need := PagesFor(offset, length)
	if need == 0 {
		return nil, fmt.Errorf("%w: %d bytes at offset %d, want 1 to %d bytes at less than %d", ErrPageList, length, offset, abi.MaxMRSize, abi.PageSize)
	}
	pages, err := ReadPageList(mem, root, levels, need)
	if err != nil {
		return nil, err
	}
	return NewArea(mem, pages, offset, length)
}

// Direct returns the area whose offsets are device addresses: all that mem holds, now and later.
func Direct(mem *Memory) *Area {
	return &Area{mem: mem, pages: PageList{n: 1 << 51}, length: 1<<63 - 1}
}

// Len returns the bytes of the area.
func (a *Area) Len() uint64 { return a.length }

// Footprint returns the bytes of host memory the area's page list takes.
func (a *Area) Footprint() int { return a.pages.Footprint() }

// check reports whether n bytes at off lie in the area.
func (a *Area) check(off uint64, n int) error {
	if off > a.length || uint64(n) > a.length-off {
		return fault(off, n, WhyOutside)
	}
	return nil
}

// addr returns the device address of offset off and the contiguous bytes
// there, counted no further than needed for want bytes.
func (a *Area) addr(off, want uint64) (addr, n uint64) {
	off += a.start
	in := off % abi.PageSize
	addr, n = a.pages.run(int(off/abi.PageSize), in+want)
	return addr + in, n - in
}

// ReadAt copies len(dst) bytes at off to dst. Errors of this and all methods
// below are *FaultError.
func (a *Area) ReadAt(off uint64, dst []byte) error {
	if err := a.check(off, len(dst)); err != nil {
		return err
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

// WriteAt copies src to off. When a page in the middle fails the pages before
// it have been written.
func (a *Area) WriteAt(off uint64, src []byte) error {
	if err := a.check(off, len(src)); err != nil {
		return err
	}
	for len(src) > 0 {
		addr, n := a.addr(off, uint64(len(src)))
		n = min(n, uint64(len(src)))
		if err := a.mem.Write(addr, src[:n]); err != nil {
			return err
		}
		off, src = off+n, src[n:]
	}
	return nil
}

// word returns the device address of size bytes at off.
func (a *Area) word(off uint64, size int) (uint64, error) {
	if err := a.check(off, size); err != nil {
		return 0, err
	}
	addr, n := a.addr(off, uint64(size))
	if n < uint64(size) {
		return 0, fault(addr, size, WhyMisaligned)
	}
	return addr, nil
}

// Load32 is Memory.Load32 at off.
func (a *Area) Load32(off uint64) (uint32, error) {
	addr, err := a.word(off, 4)
	if err != nil {
		return 0, err
	}
	return a.mem.Load32(addr)
}

// Load64 is Memory.Load64 at off.
func (a *Area) Load64(off uint64) (uint64, error) {
	addr, err := a.word(off, 8)
	if err != nil {
		return 0, err
	}
	return a.mem.Load64(addr)
}

// Store32 is Memory.Store32 at off.
func (a *Area) Store32(off uint64, v uint32) error {
	addr, err := a.word(off, 4)
	if err != nil {
		return err
	}
	return a.mem.Store32(addr, v)
}

// Store64Release is Memory.Store64 at off: writes before it are visible first.
func (a *Area) Store64Release(off, v uint64) error {
	addr, err := a.word(off, 8)
	if err != nil {
		return err
	}
	return a.mem.Store64(addr, v)
}

// CompareAndSwap64 is Memory.CompareAndSwap64 at off.
func (a *Area) CompareAndSwap64(off, old, new uint64) (prev uint64, err error) {
	addr, err := a.word(off, 8)
	if err != nil {
		return 0, err
	}
	return a.mem.CompareAndSwap64(addr, old, new)
}

// FetchAdd64 is Memory.FetchAdd64 at off.
func (a *Area) FetchAdd64(off, delta uint64) (prev uint64, err error) {
	addr, err := a.word(off, 8)
	if err != nil {
		return 0, err
	}
	return a.mem.FetchAdd64(addr, delta)
}

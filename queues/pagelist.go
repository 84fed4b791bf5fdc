package queues

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// MaxPages is the longest page list: a memory region of abi.MaxMRSize bytes
// that does not start on a page.
const MaxPages = abi.MaxMRSize/abi.PageSize + 1

// ErrPageList says that a page list is malformed: levels, length, or an
// address that is not a multiple of the page size.
var ErrPageList = errors.New("queues: malformed page list")

// PageListError is an ErrPageList that one address of the list is to blame for.
type PageListError struct {
	Addr uint64
	Why  string
}

// Error implements error.
func (e *PageListError) Error() string { return fmt.Sprintf("%v: %#x: %s", ErrPageList, e.Addr, e.Why) }

// Unwrap makes it an ErrPageList.
func (e *PageListError) Unwrap() error { return ErrPageList }

// PageList is a copy of a guest's page list: the device address of each 4 KiB
// page, in order. It takes 4 bytes per page, and none beyond the header while
// the pages are contiguous.
type PageList struct {
	first uint64  // page number of page 0
	n     int     // pages
	rel   []int32 // page number of each page less first; nil while contiguous
}

// Pages returns the number of pages.
func (p *PageList) Pages() int { return p.n }

// Footprint returns the bytes of host memory the list takes.
func (p *PageList) Footprint() int { return 4 * cap(p.rel) }

// page returns the page number of page i.
func (p *PageList) page(i int) uint64 {
	if p.rel == nil {
		return p.first + uint64(i)
	}
	return p.first + uint64(int64(p.rel[i]))
}

// run returns the device address of page i and how many bytes from there are
// contiguous, at least to the end of page i and at most atLeast rounded up to
// pages.
func (p *PageList) run(i int, atLeast uint64) (addr, n uint64) {
	start := p.page(i)
	if p.rel == nil {
		return start * abi.PageSize, uint64(p.n-i) * abi.PageSize
	}
	pages := uint64(1)
	for i++; i < p.n && pages*abi.PageSize < atLeast && p.page(i) == start+pages; i++ {
		pages++
	}
	return start * abi.PageSize, pages * abi.PageSize
}

// append adds one page; false when it is too far from the first to be kept.
func (p *PageList) append(page uint64, n int) bool {
	if p.n == 0 {
		p.first = page
	}
	if p.rel == nil && page == p.first+uint64(p.n) {
		p.n++
		return true
	}
	d := int64(page - p.first)
	if d != int64(int32(d)) {
		return false
	}
	if p.rel == nil {
		p.rel = make([]int32, p.n, n)
		for i := range p.rel {
			p.rel[i] = int32(i)
		}
	}
	p.rel = append(p.rel, int32(d))
	p.n++
	return true
}

// ReadPageList copies the list of n pages whose root is at device address
// root. With one level root is a page of up to abi.PageListEntries addresses
// of pages, with two a page of addresses of such pages, and so on up to
// abi.MaxPageLevels. Every page must be mapped now. The error is a
// *FaultError, or wraps ErrPageList. All pages must lie within 8 TiB of the
// first.
func ReadPageList(m *Memory, root uint64, levels, n int) (PageList, error) {
	var r ListReader
	if err := r.Start(m, root, levels, n); err != nil {
		return PageList{}, err
	}
	if _, err := r.Read(n); err != nil {
		return PageList{}, err
	}
	return r.list, nil
}

// ListReader copies a page list in pieces, so that a long one holds nobody up.
// Each page of the list is read once.
type ListReader struct {
	m      *Memory
	list   PageList
	n      int // pages wanted
	levels int
	depth  int // pages of the list being gone through, root first
	path   [abi.MaxPageLevels]listPage
}

// listPage is the copy of one page of a list.
type listPage struct {
	next, entries int
	buf           [abi.PageSize]byte
}

// Start checks the arguments, which are those of ReadPageList, and reads the
// root.
func (r *ListReader) Start(m *Memory, root uint64, levels, n int) error {
	if levels < 1 || levels > abi.MaxPageLevels {
		return fmt.Errorf("%w: %d levels, want 1 to %d", ErrPageList, levels, abi.MaxPageLevels)
	}
	reach := 1
	for range levels {
		reach *= abi.PageListEntries
	}
	if n < 1 || n > MaxPages || n > reach {
		return fmt.Errorf("%w: %d pages, want 1 to %d with %d levels", ErrPageList, n, min(reach, MaxPages), levels)
	}
	if root%abi.PageSize != 0 {
		return &PageListError{root, "root is not a multiple of the page size"}
	}
	r.m, r.n, r.levels, r.depth, r.list = m, n, levels, 0, PageList{}
	return r.enter(root)
}

// enter reads the page of the list at address at, below the current one.
func (r *ListReader) enter(at uint64) error {
	below := 1 // pages below one entry
	for range r.levels - r.depth - 1 {
		below *= abi.PageListEntries
	}
	l := &r.path[r.depth]
	l.next, l.entries = 0, min((r.n-r.list.n+below-1)/below, abi.PageListEntries)
	r.depth++
	return r.m.Read(at, l.buf[:8*l.entries])
}

// Read copies at most limit more pages and reports whether all are there. After an
// error the reader cannot be used.
func (r *ListReader) Read(limit int) (done bool, err error) {
	for r.list.n < r.n {
		if limit <= 0 {
			return false, nil
		}
		l := &r.path[r.depth-1]
		if l.next == l.entries {
			r.depth-- // the root has entries left while pages are missing
			continue
		}
		addr := binary.LittleEndian.Uint64(l.buf[8*l.next:])
		l.next++
		switch {
		case addr%abi.PageSize != 0:
			return false, &PageListError{addr, "entry is not a multiple of the page size"}
		case r.depth < r.levels:
			if err := r.enter(addr); err != nil {
				return false, err
			}
			continue
		case !r.m.Contains(addr, abi.PageSize):
			return false, fault(addr, abi.PageSize, WhyUnmapped)
		case !r.list.append(addr/abi.PageSize, r.n):
			return false, &PageListError{addr, "page is too far from the first"}
		}
		limit--
	}
	return true, nil
}

// List returns the pages, once Read has reported that all are there.
func (r *ListReader) List() PageList { return r.list }

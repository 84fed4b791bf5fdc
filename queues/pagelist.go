package queues

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// MaxPages is the length of the longest page list: what abi.MaxPageLevels levels hold.
const MaxPages = abi.PageListEntries * abi.PageListEntries * abi.PageListEntries

// ErrPageList means that a page list is malformed: its levels, its length, or an address that is
// not a multiple of the page size.
var ErrPageList = errors.New("queues: malformed page list")

// PageListError is an ErrPageList caused by one address of the list.
type PageListError struct {
	Addr uint64
	Why  string
}

// Error implements error.
func (e *PageListError) Error() string { return fmt.Sprintf("%v: %#x: %s", ErrPageList, e.Addr, e.Why) }

// ErrScattered means that a page list would take more host memory than is allowed.
var ErrScattered = errors.New("queues: page list of too many pages that do not follow each other")

// Unwrap returns ErrPageList.
func (e *PageListError) Unwrap() error { return ErrPageList }

// Span describes the position of bytes on the pages of a list.
type Span struct {
	PageShift uint8  // log2 of the bytes of a page; 0 means that of abi.PageSize
	Offset    uint32 // of the first byte in the first page
	Length    uint64 // bytes
}

// Shift returns the log2 of the bytes of a page.
func (s *Span) Shift() uint8 {
	if s.PageShift == 0 {
		return abi.MinPageShift
	}
	return s.PageShift
}

// Pages returns the number of pages that the bytes touch. It returns 0 if that is none, more than
// MaxPages or more than abi.MaxMRSize bytes, or if the page size or the offset is invalid.
func (s *Span) Pages() int {
	shift := s.Shift()
	if s.Length == 0 || s.Length > abi.MaxMRSize || shift < abi.MinPageShift || shift > abi.MaxPageShift || uint64(s.Offset) >= 1<<shift {
		return 0
	}
	if n := (uint64(s.Offset) + s.Length - 1) >> shift; n < MaxPages {
		return int(n) + 1
	}
	return 0
}

// part returns the bytes of page i, which is below Pages, that the span covers.
func (s *Span) part(i int) (from, n uint64) {
	start := uint64(i) << s.Shift()
	if i == 0 {
		from = uint64(s.Offset)
	}
	return from, min(uint64(1)<<s.Shift(), uint64(s.Offset)+s.Length-start) - from
}

// PageList is a copy of a guest's page list: the device address of each page, in order. While the
// pages are contiguous it takes no memory beyond the header. It takes 4 bytes for each page from
// the first one on that does not follow the page before it.
type PageList struct {
	shift    uint8     // log2 of the bytes of a page
	first    uint64    // page number of page 0
	n        int       // pages
	straight int       // number of pages at the beginning that follow each other
	rel      [][]int32 // for the other pages: page number minus first, in pieces of relPiece
}

// relPiece is the number of pages in a piece, except the last. Growing a long list copies no full
// piece.
const (
	relLog2  = 12
	relPiece = 1 << relLog2
)

// Pages returns the number of pages.
func (p *PageList) Pages() int { return p.n }

// Footprint returns the bytes of host memory that the list takes.
func (p *PageList) Footprint() int {
	if len(p.rel) == 0 {
		return 0
	}
	return 4 * ((len(p.rel)-1)*relPiece + cap(p.rel[len(p.rel)-1]))
}

// page returns the page number of page i.
func (p *PageList) page(i int) uint64 {
	if i < p.straight {
		return p.first + uint64(i)
	}
	i -= p.straight
	return p.first + uint64(int64(p.rel[i>>relLog2][i&(relPiece-1)]))
}

// run returns the device address of page i and the number of contiguous bytes from there. The
// number reaches at least to the end of page i. Behind the straight part of the list, run counts
// only as many pages as atLeast needs.
func (p *PageList) run(i int, atLeast uint64) (addr, n uint64) {
	shift := p.shift & 63 // it is below 64, but the compiler does not know
	if i < p.straight {
		return (p.first + uint64(i)) << shift, uint64(p.straight-i) << shift
	}
	start, pages := p.page(i), uint64(1)
	for i++; i < p.n && pages<<shift < atLeast && p.page(i) == start+pages; i++ {
		pages++
	}
	return start << shift, pages << shift
}

// append adds one page to a list that will have n pages. It fails if the page is too far from the
// first one to be stored, or if the list would take more than room bytes.
func (p *PageList) append(page uint64, n, room int) error {
	if p.n == 0 {
		p.first = page
	}
	if p.straight == p.n && page == p.first+uint64(p.n) {
		p.n++
		p.straight++
		return nil
	}
	d := int64(page - p.first)
	if d != int64(int32(d)) {
		return &PageListError{page << p.shift, "page is too far from the first"}
	}
	k := len(p.rel) - 1
	if k < 0 || len(p.rel[k]) == cap(p.rel[k]) {
		more := min(n-p.n, relPiece)
		if p.Footprint()+4*more > room {
			return ErrScattered
		}
		p.rel = append(p.rel, make([]int32, 0, more))
		k++
	}
	p.rel[k] = append(p.rel[k], int32(d))
	p.n++
	return nil
}

// ReadPageList copies the list of a span's pages. root is the device address of the list's root.
// With one level the root is a page of up to abi.PageListEntries addresses of pages, with two
// levels a page of addresses of such pages, and so on up to abi.MaxPageLevels. The bytes of the
// span on every page must be mapped now. All pages must lie within 2^31 pages of the first. The
// error is a *FaultError, or wraps ErrPageList.
func ReadPageList(m *Memory, root uint64, levels int, span Span) (PageList, error) {
	var r ListReader
	if err := r.Start(m, root, levels, span); err != nil {
		return PageList{}, err
	}
	if _, err := r.Read(MaxPages, 4*MaxPages); err != nil {
		return PageList{}, err
	}
	return r.list, nil
}

// ListReader copies a page list in pieces, so that a long list does not delay other work. Each page
// of the list is read once.
type ListReader struct {
	m      *Memory
	list   PageList
	span   Span
	n      int // number of pages wanted
	levels int
	depth  int // number of list pages in path, root first
	path   [abi.MaxPageLevels]listPage
}

// listPage is the copy of one page of a list.
type listPage struct {
	next, entries int
	buf           [abi.PageSize]byte
}

// Start checks the arguments, which are those of ReadPageList, and reads the root.
func (r *ListReader) Start(m *Memory, root uint64, levels int, span Span) error {
	if levels < 1 || levels > abi.MaxPageLevels {
		return fmt.Errorf("%w: %d levels, want 1 to %d", ErrPageList, levels, abi.MaxPageLevels)
	}
	reach := 1
	for range levels {
		reach *= abi.PageListEntries
	}
	n := span.Pages()
	if n < 1 || n > reach {
		return fmt.Errorf("%w: %d bytes at offset %d of pages of 2^%d bytes, want 1 to %d pages with %d levels", ErrPageList, span.Length, span.Offset, span.Shift(), reach, levels)
	}
	if root%abi.PageSize != 0 {
		return &PageListError{root, "root is not a multiple of the page size"}
	}
	r.m, r.span, r.n, r.levels, r.depth, r.list = m, span, n, levels, 0, PageList{shift: span.Shift()}
	return r.enter(root)
}

// enter reads the list page at address at, one level below the current one.
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

// Read copies at most limit more pages and reports whether all have been read. If the list would
// take more than room bytes of host memory, the error is ErrScattered. After an error the reader
// cannot be used.
func (r *ListReader) Read(limit, room int) (done bool, err error) {
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
		if r.depth < r.levels {
			if addr%abi.PageSize != 0 {
				return false, &PageListError{addr, "page of the list is not at a multiple of the page size"}
			}
			if err := r.enter(addr); err != nil {
				return false, err
			}
			continue
		}
		if addr&(1<<r.list.shift-1) != 0 {
			return false, &PageListError{addr, "entry is not a multiple of the page size"}
		}
		from, n := r.span.part(r.list.n)
		if !r.m.Contains(addr+from, n) {
			return false, fault(addr+from, int(n), WhyUnmapped)
		}
		if err := r.list.append(addr>>r.list.shift, r.n, room); err != nil {
			return false, err
		}
		limit--
	}
	return true, nil
}

// List returns the pages that were read. The list is complete once Read has returned true.
func (r *ListReader) List() PageList { return r.list }

// Left returns how many pages are still to be read.
func (r *ListReader) Left() int { return r.n - r.list.n }

// Footprint returns the bytes of host memory that the pages read so far take.
func (r *ListReader) Footprint() int { return r.list.Footprint() }

package queues

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestSpanPages: how many pages bytes touch, up to the maximum of a page list, and 0 for invalid
// spans.
func TestSpanPages(t *testing.T) {
	for _, c := range []struct {
		span Span
		want int
	}{
		{Span{0, 0, 1}, 1},
		{Span{0, 0, page}, 1},
		{Span{0, 0, page + 1}, 2},
		{Span{0, 1, page}, 2},
		{Span{0, page - 1, 1}, 1},
		{Span{0, page - 1, 2}, 2},
		{Span{0, page, 1}, 0},
		{Span{0, 0, 0}, 0},
		{Span{0, 0, MaxPages * page}, MaxPages},
		{Span{0, 0, MaxPages*page + 1}, 0},
		{Span{0, 1, MaxPages * page}, 0},
		{Span{0, page - 1, MaxPages*page - page + 1}, MaxPages},
		{Span{11, 0, 1}, 0},
		{Span{12, 0, 1}, 1},
		{Span{30, 0, 1}, 1},
		{Span{31, 0, 1}, 0},
		{Span{30, 1<<30 - 1, 2}, 2},
		{Span{30, 1 << 30, 1}, 0},
		{Span{30, 0, abi.MaxMRSize}, abi.MaxMRSize >> 30},
		{Span{30, 0, abi.MaxMRSize + 1}, 0},
	} {
		if got := c.span.Pages(); got != c.want {
			t.Errorf("%+v: %d pages, want %d", c.span, got, c.want)
		}
	}
}

// TestSpanParts: the parts of a span on its pages are whole pages except for the first and the
// last, and together they are the whole span.
func TestSpanParts(t *testing.T) {
	for _, s := range []Span{{0, 0, page}, {0, 7, 5}, {0, 7, page}, {13, 8191, 2}, {13, 100, 3 * 8192}, {0, 0, 2*page + 1}} {
		sum, pages := uint64(0), s.Pages()
		for i := range pages {
			from, n := s.part(i)
			size := uint64(1) << s.Shift()
			if i > 0 && from != 0 || i == 0 && from != uint64(s.Offset) || i < pages-1 && from+n != size || n == 0 || from+n > size {
				t.Errorf("%+v: page %d has %d bytes at %d", s, i, n, from)
			}
			sum += n
		}
		if sum != s.Length {
			t.Errorf("%+v: %d bytes on its pages", s, sum)
		}
	}
}

// TestListByPieces: a reader copies as many pages as it may at a time, and says what is left.
func TestListByPieces(t *testing.T) {
	g := newGuest(20)
	var at []uint64
	for range 10 {
		at = append(at, g.page())
	}
	at[3], at[7] = at[7], at[3]
	var r ListReader
	if err := r.Start(g.m, g.list(at, 2), 2, pages(10)); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		limit, left int
		done        bool
	}{{0, 10, false}, {-1, 10, false}, {1, 9, false}, {4, 5, false}, {4, 1, false}, {1, 0, true}, {1, 0, true}, {0, 0, true}} {
		done, err := r.Read(c.limit, 1<<20)
		if err != nil || done != c.done || r.Left() != c.left {
			t.Fatalf("read %d: %t, %d left, %v; want %t, %d", i, done, r.Left(), err, c.done, c.left)
		}
	}
	list := r.List()
	for i := range at {
		if got := list.page(i) * page; got != at[i] {
			t.Errorf("page %d at %#x, want %#x", i, got, at[i])
		}
	}
}

// TestListMappedAsNeeded: of each list page only the entries that the span needs must be mapped:
// two of the root, one of the last page below it.
func TestListMappedAsNeeded(t *testing.T) {
	g := newGuest(515)
	const entries = abi.PageListEntries
	first, data := g.page(), g.page()
	for i := range uint64(entries) {
		g.put(first+8*i, data)
	}
	const far = 1 << 40
	root, last := make([]byte, 16), make([]byte, 8)
	binary.LittleEndian.PutUint64(root, first)
	binary.LittleEndian.PutUint64(root[8:], far+page)
	binary.LittleEndian.PutUint64(last, data+page)
	g.m.SetRegions([]Region{{guestBase, g.mem}, {far, root}, {far + page, last}})
	p, err := ReadPageList(g.m, far, 2, pages(entries+1))
	if err != nil || p.page(entries)*page != data+page {
		t.Errorf("%d pages, %v", p.Pages(), err)
	}
	if _, err := ReadPageList(g.m, far, 2, pages(entries+2)); err == nil {
		t.Error("an entry that is not mapped is read")
	}
	if _, err := ReadPageList(g.m, far, 2, pages(2*entries+1)); err == nil {
		t.Error("an entry of the root that is not mapped is read")
	}
}

// TestListRoomExact: a list may take exactly the available room: 4 bytes for each page from the
// first on that does not follow the one before, allocated by the piece.
func TestListRoomExact(t *testing.T) {
	g := newGuest(20)
	var at []uint64
	for range 10 {
		at = append(at, g.page())
	}
	at[3], at[7] = at[7], at[3]
	root := g.list(at, 1)
	for room, want := range map[int]error{4 * 7: nil, 4*7 - 1: ErrScattered, 0: ErrScattered} {
		var r ListReader
		if err := r.Start(g.m, root, 1, pages(10)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Read(100, room); !errors.Is(err, want) || r.Footprint() > room {
			t.Errorf("room for %d bytes: %v, takes %d", room, err, r.Footprint())
		}
	}
}

// TestRuns: what is contiguous from a page on, found no further than is asked for.
func TestRuns(t *testing.T) {
	var p PageList
	p.shift = 12
	for _, at := range []uint64{100, 101, 102, 50, 51, 52, 53, 60} {
		if err := p.append(at, 8, 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		i       int
		atLeast uint64
		addr, n uint64 // pages
	}{
		{0, 1, 100, 3},
		{2, 1, 102, 1},
		{3, 1, 50, 1},
		{3, page, 50, 1},
		{3, page + 1, 50, 2},
		{3, 3 * page, 50, 3},
		{3, 1 << 40, 50, 4},
		{5, 1 << 40, 52, 2},
		{7, 1 << 40, 60, 1},
	} {
		if addr, n := p.run(c.i, c.atLeast); addr != c.addr*page || n != c.n*page {
			t.Errorf("from page %d, %d bytes: %d pages at %d, want %d at %d", c.i, c.atLeast, n/page, addr/page, c.n, c.addr)
		}
	}
}

// TestAreaRuns: bytes that follow each other on several pages are found as one piece, wherever they
// begin, no further than is asked for.
func TestAreaRuns(t *testing.T) {
	g := newGuest(8)
	at := []uint64{g.page(), g.page(), g.page(), g.page()}
	at = append(at[3:], at[:3]...) // one apart, then three that follow each other
	a, err := ReadArea(g.m, g.list(at, 1), 1, Span{Offset: 100, Length: 4*page - 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ off, want, n uint64 }{
		{0, 1, page - 100},
		{page - 101, 2 * page, 1},
		{page - 100, page, page},
		{page - 100, page + 1, 2 * page},
		{page, page - 100, page - 100},
		{page, page - 99, 2*page - 100},
		{page, 5 * page, 3*page - 100},
	} {
		if addr, n := a.addr(c.off, c.want); n != c.n || addr != at[(c.off+100)/page]+(c.off+100)%page {
			t.Errorf("%d bytes at %d: %d at %#x, want %d", c.want, c.off, n, addr, c.n)
		}
	}
}

// TestWordsAtPageEnds: a word may end with its page, and may not lie on two.
func TestWordsAtPageEnds(t *testing.T) {
	g := newGuest(8)
	at := []uint64{g.page(), g.page(), g.page()}
	at[0], at[2] = at[2], at[0]
	a, err := ReadArea(g.m, g.list(at, 1), 1, Span{Length: 3 * page})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Store64Release(page-8, 5); err != nil {
		t.Error(err)
	}
	if err := a.Store32(page-4, 6); err != nil {
		t.Error(err)
	}
	_, err = a.Load64(page - 4)
	wantFault(t, err, WhyMisaligned)
	_, err = a.Load32(page - 2)
	wantFault(t, err, WhyMisaligned)
	if err := a.Store64Release(3*page-8, 5); err != nil {
		t.Error("the last word:", err)
	}
}

// TestAreaOfOtherPages: an area is of a span that its pages hold, with their size.
func TestAreaOfOtherPages(t *testing.T) {
	g := newGuest(4)
	p, err := ReadPageList(g.m, g.list([]uint64{g.page()}, 1), 1, pages(1))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		span Span
		ok   bool
	}{{Span{0, 0, page}, true}, {Span{12, 1, page - 1}, true}, {Span{}, false}, {Span{13, 0, 1}, false}, {Span{0, 0, page + 1}, false}} {
		if _, err := NewArea(g.m, p, c.span); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrPageList) {
			t.Errorf("%+v: %v", c.span, err)
		}
	}
}

// TestDirect: the area of device addresses has them all, as far as they are mapped.
func TestDirect(t *testing.T) {
	mem := make([]byte, 64)
	a := Direct(NewMemory([]Region{{1<<62 + 5*page, mem}}))
	if err := a.WriteAt(1<<62+5*page+63, []byte{7}); err != nil || mem[63] != 7 {
		t.Error(err)
	}
	wantFault(t, a.WriteAt(1<<62+5*page+63, []byte{7, 8}), WhyUnmapped)
	wantFault(t, a.WriteAt(1<<63, []byte{7}), WhyOutside)
	if a.Len() != 1<<63-1 || a.Footprint() != 0 {
		t.Errorf("%d bytes, takes %d", a.Len(), a.Footprint())
	}
}

// TestRegionsAtTheEnds: the first and the last address can be mapped and taken away.
func TestRegionsAtTheEnds(t *testing.T) {
	mem := make([]byte, 32)
	var r Regions
	r = r.With(Region{0, mem[:16]}).With(Region{top - 15, mem[16:]})
	if r.Len() != 2 || r.Bytes() != 32 {
		t.Fatalf("%d regions of %d bytes", r.Len(), r.Bytes())
	}
	if same := r.With(Region{top - 14, mem[:16]}).With(Region{5, nil}).With(Region{15, mem[:1]}).Without(100, 0); same.Len() != 2 || same.Bytes() != 32 {
		t.Errorf("%d regions of %d bytes", same.Len(), same.Bytes())
	}
	if none := r.Without(0, 16).Without(top-15, 16); none.Len() != 0 || none.Bytes() != 0 {
		t.Errorf("%d regions of %d bytes are left", none.Len(), none.Bytes())
	}
	if part := r.Without(1, 14).Without(top, 1); part.Len() != 3 || part.Bytes() != 2+15 {
		t.Errorf("%d regions of %d bytes are left", part.Len(), part.Bytes())
	}
	if all := r.Without(1, top); all.Len() != 1 || all.Bytes() != 1 {
		t.Errorf("%d regions of %d bytes are left", all.Len(), all.Bytes())
	}
}

// TestFirstPageFromItsOffset: of the first page exactly the part from the span's offset on must be
// mapped.
func TestFirstPageFromItsOffset(t *testing.T) {
	g := newGuest(4)
	const far, offset = 1 << 40, 3000
	at := g.page()
	g.put(at, far)
	for name, c := range map[string]struct {
		from, end uint64
		refused   uint64 // the address; 0: none
	}{
		"exactly":   {offset, offset + 500, 0},
		"too late":  {offset + 1, offset + 500, far + offset},
		"too short": {offset, offset + 499, far + offset},
		"all":       {0, page, 0},
	} {
		g.m.SetRegions([]Region{{guestBase, g.mem}, {far + c.from, make([]byte, c.end-c.from)}})
		_, err := ReadPageList(g.m, at, 1, Span{Offset: offset, Length: 500})
		var fault *FaultError
		if c.refused == 0 && err != nil || c.refused != 0 && (!errors.As(err, &fault) || fault.Addr != c.refused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

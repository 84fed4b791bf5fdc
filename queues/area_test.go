package queues

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

const page = abi.PageSize

// guest is a small guest: memory from page 1 on, pages handed out in order.
type guest struct {
	mem  []byte
	next uint64
	m    *Memory
}

const guestBase = page

func newGuest(pages int) *guest {
	mem := make([]byte, pages*page+8)
	off := 0
	for !aligned(mem[off:][:8:8]) {
		off++
	}
	mem = mem[off : off+pages*page]
	return &guest{mem: mem, next: guestBase, m: NewMemory([]Region{{guestBase, mem}})}
}

func (g *guest) page() uint64 {
	g.next += page
	return g.next - page
}

// pages is the span of n whole pages.
func pages(n int) Span { return Span{Length: uint64(n) * page} }

func (g *guest) put(addr, v uint64) { binary.LittleEndian.PutUint64(g.mem[addr-guestBase:], v) }

// list writes a page list and returns its root.
func (g *guest) list(pages []uint64, levels int) uint64 {
	if levels > 1 {
		below := 1
		for range levels - 1 {
			below *= abi.PageListEntries
		}
		var upper []uint64
		for len(pages) > 0 {
			n := min(below, len(pages))
			upper = append(upper, g.list(pages[:n], levels-1))
			pages = pages[n:]
		}
		pages = upper
	}
	root := g.page()
	for i, p := range pages {
		g.put(root+8*uint64(i), p)
	}
	return root
}

func TestPageListLevels(t *testing.T) {
	for _, c := range []struct{ n, levels int }{{1, 1}, {512, 1}, {1, 2}, {513, 2}, {700, 3}, {1, 3}} {
		for _, order := range []string{"contiguous", "backwards", "same"} {
			t.Run(fmt.Sprintf("%d pages, %d levels, %s", c.n, c.levels, order), func(t *testing.T) {
				g := newGuest(c.n + 10)
				want := make([]uint64, c.n)
				for i := range want {
					want[i] = g.page()
				}
				switch order {
				case "backwards":
					for i, j := 0, c.n-1; i < j; i, j = i+1, j-1 {
						want[i], want[j] = want[j], want[i]
					}
				case "same":
					for i := range want {
						want[i] = want[0]
					}
				}
				p, err := ReadPageList(g.m, g.list(want, c.levels), c.levels, pages(c.n))
				if err != nil {
					t.Fatal(err)
				}
				if p.Pages() != c.n {
					t.Fatalf("%d pages", p.Pages())
				}
				for i := range want {
					if got := p.page(i) * page; got != want[i] {
						t.Fatalf("page %d at %#x, want %#x", i, got, want[i])
					}
				}
				if order == "contiguous" && p.Footprint() != 0 || p.Footprint() > 4*c.n {
					t.Errorf("footprint %d", p.Footprint())
				}
			})
		}
	}
}

// TestPageListCopied changes the guest's list after it was read (DEV-404).
func TestPageListCopied(t *testing.T) {
	g := newGuest(8)
	at := []uint64{g.page(), g.page() + 2*page}
	g.page()
	g.page()
	root := g.list(at, 1)
	p, err := ReadPageList(g.m, root, 1, pages(2))
	if err != nil {
		t.Fatal(err)
	}
	g.put(root, 0xdead000)
	if p.page(0)*page != at[0] {
		t.Error("the copy changed")
	}
}

func TestBadPageLists(t *testing.T) {
	g := newGuest(16)
	a, b := g.page(), g.page()
	good := g.list([]uint64{a, b}, 1)
	bad := g.list([]uint64{a, b + 8}, 1)
	away := g.list([]uint64{a, 1 << 40}, 1)
	last := g.list([]uint64{a, ^uint64(0) &^ (page - 1)}, 1)
	upper := g.list([]uint64{good + 1}, 1)
	loop := g.page()
	g.put(loop, loop) // a page that lists itself: bounded by the levels
	for name, c := range map[string]struct {
		root      uint64
		levels, n int
		want      any
	}{
		"no levels":       {good, 0, 1, ErrPageList},
		"negative levels": {good, -1, 1, ErrPageList},
		"four levels":     {good, 4, 1, ErrPageList},
		"no pages":        {good, 1, 0, ErrPageList},
		"negative pages":  {good, 1, -1, ErrPageList},
		"beyond a level":  {good, 1, 513, ErrPageList},
		"beyond all":      {good, 3, MaxPages + 1, ErrPageList},
		"odd root":        {good + 8, 1, 1, ErrPageList},
		"odd page":        {bad, 1, 2, ErrPageList},
		"odd list":        {upper, 2, 1, ErrPageList},
		"root away":       {1 << 40, 1, 1, WhyUnmapped},
		"page away":       {away, 1, 2, WhyUnmapped},
		"last page":       {last, 1, 2, WhyUnmapped},
		"list away":       {away, 2, 600, WhyUnmapped},
	} {
		_, err := ReadPageList(g.m, c.root, c.levels, pages(c.n))
		switch want := c.want.(type) {
		case error:
			if !errors.Is(err, want) {
				t.Errorf("%s: %v", name, err)
			}
		case string:
			var f *FaultError
			if !errors.As(err, &f) || f.Why != want {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if _, err := ReadPageList(g.m, loop, 3, pages(1)); err != nil {
		t.Errorf("a page that lists itself: %v", err)
	}
}

// TestPagesTooFarAwayAreRefused keeps pages far apart, and refuses those too far to keep
// (DRV-403).
func TestPagesTooFarAwayAreRefused(t *testing.T) {
	g := newGuest(8)
	far, tooFar := uint64(1)<<43-page, uint64(1)<<44
	g.m.SetRegions([]Region{{guestBase, g.mem}, {far, make([]byte, page)}, {tooFar, make([]byte, page)}})
	a := g.page()
	p, err := ReadPageList(g.m, g.list([]uint64{a, far, a}, 1), 1, pages(3))
	if err != nil || p.page(1)*page != far || p.page(2)*page != a {
		t.Fatal(p, err)
	}
	if _, err := ReadPageList(g.m, g.list([]uint64{a, tooFar}, 1), 1, pages(2)); !errors.Is(err, ErrPageList) {
		t.Fatal(err)
	}
	p, err = ReadPageList(g.m, g.list([]uint64{far, a}, 1), 1, pages(2))
	if err != nil || p.page(1)*page != a {
		t.Fatal("backwards:", p, err)
	}
}

// TestTheLargestRegionIsReachableToItsEnd reads the list of a region of the largest size, with the largest pages and with
// the smallest. Every page of the list is the same guest page, so that it takes little memory.
func TestTheLargestRegionIsReachableToItsEnd(t *testing.T) {
	const big = 1 << abi.MaxPageShift
	g := newGuest(5)
	ram, err := unix.Mmap(-1, 0, big, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(ram)
	g.m.SetRegions([]Region{{guestBase, g.mem}, {4 * big, ram}})
	data, leaf, mid, root := g.page(), g.page(), g.page(), g.page()
	for i := range uint64(abi.PageListEntries) {
		g.put(leaf+8*i, 4*big)
		g.put(mid+8*i, leaf)
		g.put(root+8*i, mid)
	}
	a, err := ReadArea(g.m, root, 3, Span{PageShift: abi.MaxPageShift, Offset: big - 1, Length: abi.MaxMRSize})
	if err != nil {
		t.Fatal(err)
	}
	if got, limit := a.Footprint(), 4*abi.MaxMRSize/big; got != limit {
		t.Errorf("footprint %d, want %d", got, limit)
	}
	if err := a.WriteAt(abi.MaxMRSize-1, []byte{7}); err != nil || ram[big-2] != 7 {
		t.Error("last byte:", err)
	}
	wantFault(t, a.WriteAt(abi.MaxMRSize, []byte{7}), WhyOutside)

	for i := range uint64(abi.PageListEntries) {
		g.put(leaf+8*i, data)
	}
	const long = 8 << 30
	if a, err = ReadArea(g.m, root, 3, Span{Offset: page - 1, Length: long}); err != nil {
		t.Fatal(err)
	}
	if got, limit := a.Footprint(), 4*long/page; got != limit { // the first takes none
		t.Errorf("footprint %d, want %d", got, limit)
	}
	if err := a.WriteAt(long-1, []byte{9}); err != nil || g.mem[data-guestBase+page-2] != 9 {
		t.Error("last byte:", err)
	}
}

// TestAListTakesNoMoreMemoryThanItMay: a list that is read in pieces never takes more memory than it may.
func TestAListTakesNoMoreMemoryThanItMay(t *testing.T) {
	g := newGuest(5)
	data, leaf, mid, root := g.page(), g.page(), g.page(), g.page()
	for i := range uint64(abi.PageListEntries) {
		g.put(leaf+8*i, data)
		g.put(mid+8*i, leaf)
		g.put(root+8*i, mid)
	}
	const n, room = 100_000, 64 << 10
	var r ListReader
	if err := r.Start(g.m, root, 3, pages(n)); err != nil {
		t.Fatal(err)
	}
	for {
		done, err := r.Read(100, room)
		if r.Footprint() > room {
			t.Fatalf("%d bytes", r.Footprint())
		}
		if errors.Is(err, ErrScattered) {
			break
		}
		if err != nil || done {
			t.Fatal(done, err)
		}
	}
	if read := n - r.Left(); read < room/4-relPiece || read > room/4+1 {
		t.Errorf("%d pages fitted into %d bytes", read, room)
	}
}

// TestAreasWorkOverPagesOfEverySize reads and writes areas over pages of each size, at random places, and compares with
// memory. Only the part of each page that an area covers must be mapped. (DEV-407)
func TestAreasWorkOverPagesOfEverySize(t *testing.T) {
	const size = 1 << 26
	ram, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(ram)
	rng := rand.New(rand.NewPCG(1, 2))
	for shift := uint8(12); shift <= 24; shift++ {
		g := newGuest(2)
		g.m.SetRegions([]Region{{guestBase, g.mem}, {1 << 40, ram}})
		n := min(size>>shift, 7)
		at := make([]uint64, n)
		for i := range at {
			at[i] = 1<<40 + uint64(rng.IntN(size>>shift))<<shift
		}
		if rng.IntN(2) == 0 {
			at[1] = 1<<40 + (at[0]+1<<shift)%size
		}
		span := Span{PageShift: shift, Offset: uint32(rng.IntN(1 << shift))}
		span.Length = uint64(n)<<shift - uint64(span.Offset) - uint64(rng.IntN(1<<shift))
		a, err := ReadArea(g.m, g.list(at, 1), 1, span)
		if err != nil {
			t.Fatal(shift, err)
		}
		for range 20 {
			off := uint64(rng.Int64N(int64(span.Length)))
			b := make([]byte, 1+rng.Int64N(int64(min(span.Length-off, 3<<shift))))
			if err := a.WriteAt(off, b); err != nil {
				t.Fatal(shift, err)
			}
			if err := a.WriteAt(off, []byte{1}); err != nil {
				t.Fatal(shift, err)
			}
			place := off + uint64(span.Offset)
			phys := at[place>>shift] - 1<<40 + place&(1<<shift-1)
			if ram[phys] != 1 {
				t.Fatalf("shift %d: offset %#x is not at %#x", shift, off, phys)
			}
			if err := a.ReadAt(off, b); err != nil || b[0] != 1 {
				t.Fatal(shift, err)
			}
		}
	}
	// The guest's memory ends in the middle of the page.
	g := newGuest(2)
	g.m.SetRegions([]Region{{guestBase, g.mem}, {1<<40 + page, ram[:page]}})
	root := g.list([]uint64{1 << 40}, 1)
	if _, err := ReadArea(g.m, root, 1, Span{PageShift: 21, Offset: page, Length: page}); err != nil {
		t.Error(err)
	}
	for _, s := range []Span{{21, page - 1, 2}, {21, page, page + 1}, {21, 0, 1}} {
		var f *FaultError
		if _, err := ReadArea(g.m, root, 1, s); !errors.As(err, &f) || f.Why != WhyUnmapped {
			t.Errorf("%+v: %v", s, err)
		}
	}
	odd := g.list([]uint64{1<<40 + page}, 1)
	if _, err := ReadArea(g.m, odd, 1, Span{PageShift: 21, Length: 1}); !errors.Is(err, ErrPageList) {
		t.Error("an address that is not a multiple of the page size:", err)
	}
}

func TestImpossibleAreasAreRefused(t *testing.T) {
	g := newGuest(4)
	root := g.list([]uint64{g.page()}, 1)
	for _, c := range []Span{
		{0, 0, 0},
		{0, page, 1},
		{0, 0, abi.MaxMRSize + 1},
		{0, 0, ^uint64(0)},
		{0, page - 1, ^uint64(0)},
		{0, 0xffffffff, 1},
		{0, 0, abi.MaxMRSize}, // more pages than three levels hold
		{11, 0, 1},
		{31, 0, 1},
		{64, 0, 1},
		{255, 0, 1},
		{30, 1 << 30, 1},
		{30, 1<<30 - 1, abi.MaxMRSize + 1},
	} {
		if _, err := ReadArea(g.m, root, 3, c); !errors.Is(err, ErrPageList) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	p, err := ReadPageList(g.m, root, 1, pages(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewArea(g.m, p, Span{Offset: 1, Length: page}); !errors.Is(err, ErrPageList) {
		t.Errorf("area longer than its pages: %v", err)
	}
	a, err := NewArea(g.m, p, Span{Offset: 8, Length: 16})
	if err != nil || a.Len() != 16 {
		t.Fatal(err)
	}
	for _, off := range []uint64{9, 16, 17, ^uint64(0), ^uint64(0) - 7} {
		wantFault(t, a.ReadAt(off, make([]byte, 8)), WhyOutside)
		wantFault(t, a.WriteAt(off, make([]byte, 8)), WhyOutside)
		wantFault(t, a.Store64Release(off, 1), WhyOutside)
		_, err := a.Load64(off)
		wantFault(t, err, WhyOutside)
		_, err = a.CompareAndSwap64(off, 0, 1)
		wantFault(t, err, WhyOutside)
		_, err = a.FetchAdd64(off, 1)
		wantFault(t, err, WhyOutside)
	}
	wantFault(t, a.Store32(13, 1), WhyOutside)
	_, err = a.Load32(13)
	wantFault(t, err, WhyOutside)
	if err := a.ReadAt(16, nil); err != nil {
		t.Error("nothing at the end:", err)
	}
}

// TestAnAreaBehavesLikeASlice compares areas over shuffled pages with a plain slice.
func TestAnAreaBehavesLikeASlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "pages")
		g := newGuest(n + 4)
		pages := make([]uint64, n)
		for i := range pages {
			pages[i] = g.page()
		}
		pages = rapid.Permutation(pages).Draw(t, "order")
		levels := rapid.IntRange(1, 3).Draw(t, "levels")
		offset := uint32(8 * rapid.IntRange(0, page/8-1).Draw(t, "offset"))
		length := uint64(n*page) - uint64(offset) - rapid.Uint64Range(0, 100).Draw(t, "short")
		if n == 1 && uint64(offset) > page-200 {
			offset, length = 0, page
		}
		root := g.list(pages, levels)
		span := Span{Offset: offset, Length: length}
		a, err := ReadArea(g.m, root, levels, span)
		if err != nil {
			t.Fatal(err)
		}
		model := make([]byte, length)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		t.Repeat(map[string]func(*rapid.T){
			"copy": func(t *rapid.T) {
				off := rapid.Uint64Range(0, length+8).Draw(t, "off")
				size := rapid.OneOf(rapid.Uint64Range(0, 64), rapid.Uint64Range(0, length)).Draw(t, "size")
				ok := off <= length && size <= length-off
				src := make([]byte, size)
				for i := range src {
					src[i] = byte(rng.Uint32())
				}
				if err := a.WriteAt(off, src); (err == nil) != ok {
					t.Fatalf("write %d at %d of %d: %v", size, off, length, err)
				}
				if ok {
					copy(model[off:], src)
				}
				got := make([]byte, size)
				if err := a.ReadAt(off, got); (err == nil) != ok || ok && !bytes.Equal(got, src) {
					t.Fatalf("read %d at %d of %d: %v", size, off, length, err)
				}
			},
			"words": func(t *rapid.T) {
				if length < 16 {
					return
				}
				off := rapid.Uint64Range(0, length/8-1).Draw(t, "off") * 8
				old := binary.LittleEndian.Uint64(model[off:])
				if v, err := a.Load64(off); err != nil || v != old {
					t.Fatalf("load: %d, %v", v, err)
				}
				if v, err := a.FetchAdd64(off, 5); err != nil || v != old {
					t.Fatalf("add: %d, %v", v, err)
				}
				if v, err := a.CompareAndSwap64(off, old+5, old+7); err != nil || v != old+5 {
					t.Fatalf("swap: %d, %v", v, err)
				}
				if err := a.Store32(off+4, 9); err != nil {
					t.Fatal(err)
				}
				if v, err := a.Load32(off); err != nil || v != uint32(old+7) {
					t.Fatalf("load: %d, %v", v, err)
				}
				binary.LittleEndian.PutUint32(model[off:], uint32(old+7))
				binary.LittleEndian.PutUint32(model[off+4:], 9)
				if old%2 == 0 {
					if err := a.Store64Release(off, old); err != nil {
						t.Fatal(err)
					}
					binary.LittleEndian.PutUint64(model[off:], old)
				}
			},
			"": func(t *rapid.T) {
				got := make([]byte, length)
				if err := a.ReadAt(0, got); err != nil || !bytes.Equal(got, model) {
					t.Fatal("contents differ", err)
				}
			},
		})
	})
}

// TestAreaAfterRegionsChange keeps an area over a change of the mappings.
func TestAreaAfterRegionsChange(t *testing.T) {
	g := newGuest(6)
	pages := []uint64{g.page(), g.page()}
	a, err := ReadArea(g.m, g.list(pages, 1), 1, Span{Length: 2 * page})
	if err != nil {
		t.Fatal(err)
	}
	g.m.SetRegions([]Region{{pages[0], make([]byte, page)}})
	wantFault(t, a.ReadAt(page, make([]byte, 8)), WhyUnmapped)
	wantFault(t, a.WriteAt(page-4, make([]byte, 8)), WhyUnmapped)
	_, err = a.Load32(page)
	wantFault(t, err, WhyUnmapped)
	if err := a.ReadAt(0, make([]byte, 8)); err != nil {
		t.Error(err)
	}
	g.m.SetRegions([]Region{{guestBase, g.mem}})
	if err := a.ReadAt(page-4, make([]byte, 8)); err != nil {
		t.Error(err)
	}
}

// TestRingOverArea runs a queue and a completion queue through areas, with
// entries that cross pages.
func TestRingOverArea(t *testing.T) {
	g := newGuest(16)
	layout := ring.QueueLayout(5, 8)
	pages := []uint64{g.page(), g.page(), g.page(), g.page()}
	pages[0], pages[2] = pages[2], pages[0]
	q, err := ReadArea(g.m, g.list(pages, 1), 1, Span{Length: layout.Size()})
	if err != nil {
		t.Fatal(err)
	}
	p, c := ring.NewProducer(q, layout), ring.NewConsumer(q, layout)
	for i := range 100 {
		e := bytes.Repeat([]byte{byte(i)}, 256)
		if err := p.Push(e); err != nil {
			t.Fatal(err)
		}
		index, _, err := p.Publish()
		if err != nil {
			t.Fatal(err)
		}
		if n, err := c.Doorbell(index); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		got := make([]byte, 256)
		if err := c.Read(got); err != nil || !bytes.Equal(got, e) {
			t.Fatal(err)
		}
		c.Take()
		if err := c.Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRingHeadersMatchTheABI compares ring's own numbers with the ABI.
func TestRingHeadersMatchTheABI(t *testing.T) {
	g := newGuest(4)
	layout := ring.QueueLayout(1, 6)
	q, err := ReadArea(g.m, g.list([]uint64{g.page()}, 1), 1, Span{Length: layout.Size()})
	if err != nil {
		t.Fatal(err)
	}
	p, c := ring.NewProducer(q, layout), ring.NewConsumer(q, layout)
	if err := p.Push(bytes.Repeat([]byte{0xee}, 64)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.Publish(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Poll(); err != nil {
		t.Fatal(err)
	}
	c.Take()
	if _, err := c.Arm(); err != nil {
		t.Fatal(err)
	}
	if err := c.Commit(); err != nil {
		t.Fatal(err)
	}
	for off, want := range map[uint64]uint32{abi.QueueHeaderProducer: 1, abi.QueueHeaderConsumer: 1, abi.QueueHeaderEventIndex: 1, abi.QueueHeaderSize: 0xeeeeeeee} {
		if v, err := q.Load32(off); v != want || err != nil {
			t.Errorf("at %d: %#x, %v", off, v, err)
		}
	}

	cl := ring.CQLayout(1)
	cq, err := ReadArea(g.m, g.list([]uint64{g.page()}, 1), 1, Span{Length: cl.Size()})
	if err != nil {
		t.Fatal(err)
	}
	w, r := ring.NewCQWriter(cq, cl), ring.NewCQReader(cq, cl)
	b := make([]byte, abi.CQESize)
	if err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	if ok, err := r.Poll(b); !ok || err != nil {
		t.Fatal(err)
	}
	if err := r.Commit(); err != nil {
		t.Fatal(err)
	}
	var e abi.CQE
	e.Unmarshal(b)
	if e.Tail != abi.Phase || b[63] != 1 {
		t.Errorf("tail %#x, byte 63 is %d", e.Tail, b[63])
	}
	for off, want := range map[uint64]uint32{abi.CQHeaderProducer: 1, abi.CQHeaderConsumer: 1} {
		if v, err := cq.Load32(off); v != want || err != nil {
			t.Errorf("at %d: %#x, %v", off, v, err)
		}
	}
	if ring.CQEntrySize != abi.CQESize || ring.HeaderSize != abi.QueueHeaderSize {
		t.Error("sizes differ")
	}
}

func TestAreaDoesNotAllocate(t *testing.T) {
	g := newGuest(8)
	pages := []uint64{g.page(), g.page(), g.page()}
	pages[0], pages[1] = pages[1], pages[0]
	a, err := ReadArea(g.m, g.list(pages, 1), 1, Span{Length: 3 * page})
	if err != nil {
		t.Fatal(err)
	}
	layout := ring.QueueLayout(3, 6)
	c, w := ring.NewConsumer(a, layout), ring.NewCQWriter(a, ring.CQLayout(3))
	buf := make([]byte, 2*page)
	if n := testing.AllocsPerRun(1000, func() {
		if a.ReadAt(100, buf) != nil || a.WriteAt(100, buf) != nil || a.Store32(0, 0) != nil || a.Store64Release(8, 1) != nil {
			t.Fatal("failed")
		}
		if _, err := a.FetchAdd64(8, 1); err != nil {
			t.Fatal(err)
		}
		if _, err := a.CompareAndSwap64(8, 1, 2); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Poll(); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Full(); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

// FuzzPageList gives ReadPageList arbitrary guest memory.
func FuzzPageList(f *testing.F) {
	g := newGuest(8)
	root := g.list([]uint64{g.page(), g.page()}, 2)
	f.Add(g.mem, root, 2, uint64(2*page), uint32(0), uint8(0))
	f.Add([]byte{}, uint64(page), 1, uint64(1), uint32(4095), uint8(12))
	f.Add([]byte{}, uint64(page), 1, uint64(page), uint32(8191), uint8(13))
	f.Fuzz(func(t *testing.T, mem []byte, root uint64, levels int, length uint64, offset uint32, shift uint8) {
		if len(mem) > 16*page {
			return
		}
		g := newGuest(16)
		copy(g.mem, mem)
		span := Span{shift, offset, length}
		a, err := ReadArea(g.m, root, levels, span)
		if err != nil {
			var fe *FaultError
			if !errors.As(err, &fe) && !errors.Is(err, ErrPageList) {
				t.Fatal(err)
			}
			return
		}
		if a.Len() != length || a.Footprint() > 4*span.Pages() {
			t.Fatalf("%d bytes, footprint %d", a.Len(), a.Footprint())
		}
		n := min(length, 3*page)
		buf := make([]byte, n)
		if err := a.ReadAt(length-n, buf); err != nil {
			t.Fatal(err)
		}
		if err := a.WriteAt(length-n, buf); err != nil {
			t.Fatal(err)
		}
	})
}

// BenchmarkPageList reads the list of 2 GiB, contiguous and not. The time is
// that of the whole list; device reads it in pieces.
func BenchmarkPageList(b *testing.B) {
	const n = 2 << 30 / abi.PageSize
	const leaves = n / abi.PageListEntries
	ram, err := unix.Mmap(-1, 0, 2<<30, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		b.Skip(err)
	}
	defer unix.Munmap(ram)
	mem := make([]byte, (3+leaves)*page) // root, two pages below it, leaves
	m := NewMemory([]Region{{Addr: 1 << 40, Mem: mem}, {Addr: 0, Mem: ram}})
	put := func(at int, v uint64) { binary.LittleEndian.PutUint64(mem[at:], v) }
	for i := range 2 {
		put(8*i, 1<<40+uint64(1+i)*page)
	}
	for i := range leaves {
		put(page+8*i, 1<<40+uint64(3+i)*page)
	}
	for _, c := range []struct {
		name string
		step uint64
	}{{"contiguous", 1}, {"scattered", 5}} {
		for i := range uint64(n) {
			put(3*page+8*int(i), i*c.step%n*page)
		}
		b.Run(c.name, func(b *testing.B) {
			for range b.N {
				if _, err := ReadPageList(m, 1<<40, 3, pages(n)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestRunsAreFoundNoFurtherThanAsked: what is contiguous from a page on, found no further than is
// asked for.
func TestRunsAreFoundNoFurtherThanAsked(t *testing.T) {
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

// TestBytesThatFollowEachOtherAreOnePiece: bytes that follow each other on several pages are found
// as one piece, wherever they begin, no further than is asked for.
func TestBytesThatFollowEachOtherAreOnePiece(t *testing.T) {
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

// TestAnAreaIsOfASpanThatItsPagesHold: an area is of a span that its pages hold, with their size.
func TestAnAreaIsOfASpanThatItsPagesHold(t *testing.T) {
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

// TestTheDirectAreaHasAllMappedAddresses: the area of device addresses has them all, as far as they
// are mapped.
func TestTheDirectAreaHasAllMappedAddresses(t *testing.T) {
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

// TestAWordMayNotLieOnTwoPages: a word may end with its page, and may not lie on two.
func TestAWordMayNotLieOnTwoPages(t *testing.T) {
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

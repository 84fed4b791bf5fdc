package queues

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/internal/leak"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestMain makes the model tests run longer.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.steps", "100"); err != nil {
		panic(err)
	}
	leak.Main(m)
}

const top = math.MaxUint64

func wantFault(t *testing.T, err error, why string) {
	t.Helper()
	var f *FaultError
	if !errors.As(err, &f) || f.Why != why {
		t.Errorf("got %v, want a fault: %s", err, why)
	}
}

// TestAnAccessPastAnyEdgeIsAFault accesses around every edge, also those where addr+len wraps.
func TestAnAccessPastAnyEdgeIsAFault(t *testing.T) {
	m := NewMemory([]Region{
		{Addr: 0x1000, Mem: make([]byte, 0x1000)},
		{Addr: top - 0xfff, Mem: make([]byte, 0x1000)}, // up to 2^64-1
	})
	buf := make([]byte, 0x2000)
	for _, c := range []struct {
		addr uint64
		n    int
		ok   bool
	}{
		{0x1000, 0x1000, true},
		{0x1000, 0x1001, false},
		{0x0fff, 1, false},
		{0x0fff, 2, false},
		{0x1fff, 1, true},
		{0x1fff, 2, false},
		{0x2000, 1, false},
		{top, 1, true},
		{top, 2, false},
		{top - 0xfff, 0x1000, true},
		{top - 0xfff, 0x1001, false},
		{top - 0x1000, 1, false},
		{top - 7, 0x2000, false},
		{0, 1, false},
		{0, 0, true},
		{top, 0, true},
		{0x5555, 0, true},
	} {
		for name, err := range map[string]error{"Read": m.Read(c.addr, buf[:c.n]), "Write": m.Write(c.addr, buf[:c.n])} {
			if (err == nil) != c.ok {
				t.Errorf("%s %d at %#x: %v", name, c.n, c.addr, err)
			}
			if !c.ok {
				wantFault(t, err, WhyUnmapped)
			}
		}
		if got := m.Contains(c.addr, uint64(c.n)); got != c.ok {
			t.Errorf("Contains(%#x, %d) = %t", c.addr, c.n, got)
		}
	}
	for _, n := range []uint64{top, top - 0xfff, 1 << 63, 0x1001} {
		if m.Contains(0x1000, n) || m.Contains(top, n) {
			t.Errorf("%#x bytes are contained", n)
		}
	}
}

func TestEveryAccessToEmptyMemoryIsAFault(t *testing.T) {
	var m Memory
	wantFault(t, m.Read(0, make([]byte, 1)), WhyUnmapped)
	_, err := m.Load64(0)
	wantFault(t, err, WhyUnmapped)
	if !m.Contains(5, 0) || m.Contains(0, 1) {
		t.Error("Contains")
	}
}

// TestACopyAcrossRegionsIsAllOrNothing copies over adjacent regions, and refuses the whole copy if one byte of it is not
// mapped.
func TestACopyAcrossRegionsIsAllOrNothing(t *testing.T) {
	a, b, c := make([]byte, 10), make([]byte, 3), make([]byte, 7)
	m := NewMemory([]Region{{110, b}, {100, a}, {113, c}})
	src := []byte("0123456789abcdefghij")
	if err := m.Write(100, src); err != nil {
		t.Fatal(err)
	}
	if got := string(a) + string(b) + string(c); got != string(src) {
		t.Fatalf("%q", got)
	}
	got := make([]byte, 20)
	if err := m.Read(100, got); err != nil || string(got) != string(src) {
		t.Fatalf("%q, %v", got, err)
	}
	wantFault(t, m.Write(101, bytes.Repeat([]byte{'x'}, 20)), WhyUnmapped)
	if string(a)+string(b)+string(c) != string(src) {
		t.Error("a refused write wrote")
	}
	clear(got)
	wantFault(t, m.Read(101, got), WhyUnmapped)
	if !bytes.Equal(got, make([]byte, 20)) {
		t.Error("a refused read read")
	}
}

// TestImpossibleRegionsAreLeftOut: impossible regions are left out, and no others.
func TestImpossibleRegionsAreLeftOut(t *testing.T) {
	m := NewMemory([]Region{
		{Addr: 0x3000, Mem: nil},
		{Addr: top - 10, Mem: make([]byte, 12)}, // passes 2^64
		{Addr: 0x1000, Mem: make([]byte, 0x1000)},
		{Addr: 0x1800, Mem: make([]byte, 0x4000)}, // overlaps
		{Addr: 0x2000, Mem: make([]byte, 0x10)},
	})
	for addr, want := range map[uint64]bool{0x3000: false, top - 10: false, 0: false, 0x1fff: true, 0x2000: true, 0x200f: true, 0x2010: false} {
		if got := m.Contains(addr, 1); got != want {
			t.Errorf("%#x: %t", addr, got)
		}
	}
}

func TestNewRegionsReplaceTheOld(t *testing.T) {
	one := bytes.Repeat([]byte{1}, 64)
	two := bytes.Repeat([]byte{2}, 64)
	list := []Region{{0x1000, one}}
	m := NewMemory(list)
	list[0].Mem = nil // the caller's slice is its own
	b := make([]byte, 64)
	if err := m.Read(0x1000, b); err != nil || b[0] != 1 {
		t.Fatal(b[0], err)
	}
	m.SetRegions([]Region{{0x1000, two}})
	if err := m.Read(0x1000, b); err != nil || b[0] != 2 {
		t.Fatal(b[0], err)
	}
	m.SetRegions(nil)
	wantFault(t, m.Read(0x1000, b), WhyUnmapped)
}

func TestAtomicsWorkOnlyOnAlignedMappedWords(t *testing.T) {
	mem := make([]byte, 4096)
	m := NewMemory([]Region{{0x10000, mem[:64]}, {0x10040, mem[64:128]}})
	if err := m.store64(0x10008, 0x1122334455667788); err != nil || binary.LittleEndian.Uint64(mem[8:]) != 0x1122334455667788 {
		t.Fatal(err)
	}
	if v, err := m.Load64(0x10008); err != nil || v != 0x1122334455667788 {
		t.Error(v, err)
	}
	if v, err := m.Load32(0x1000c); err != nil || v != 0x11223344 {
		t.Error(v, err)
	}
	if err := m.Store32(0x10008, 5); err != nil || mem[8] != 5 {
		t.Error(err)
	}
	if err := m.store64(0x10040, 40); err != nil {
		t.Error(err)
	}
	if v, err := m.CompareAndSwap64(0x10040, 41, 99); v != 40 || err != nil || mem[64] != 40 {
		t.Error("swapped although different", v, err)
	}
	if v, err := m.CompareAndSwap64(0x10040, 40, 99); v != 40 || err != nil || mem[64] != 99 {
		t.Error("not swapped", v, err)
	}
	if v, err := m.FetchAdd64(0x10040, top); v != 99 || err != nil || mem[64] != 98 {
		t.Error("add modulo 2^64", v, err)
	}
	for _, op := range []func(addr uint64) error{
		func(a uint64) error { _, err := m.Load64(a); return err },
		func(a uint64) error { return m.store64(a, 0) },
		func(a uint64) error { _, err := m.CompareAndSwap64(a, 0, 0); return err },
		func(a uint64) error { _, err := m.FetchAdd64(a, 0); return err },
	} {
		for _, a := range []uint64{0x10001, 0x10004, 0x10034} {
			wantFault(t, op(a), WhyMisaligned)
		}
		for _, a := range []uint64{0x1003c, 0x1007c, 0x10080, 0, top, top - 7} { // across regions, past the end
			wantFault(t, op(a), WhyUnmapped)
		}
	}
	_, err := m.Load32(0x10002)
	wantFault(t, err, WhyMisaligned)
	wantFault(t, m.Store32(0x1007e, 0), WhyUnmapped)

	odd := NewMemory([]Region{{0x1000, mem[1:65]}}) // aligned for the guest only
	_, err = odd.Load64(0x1000)
	wantFault(t, err, WhyMisaligned)
}

// TestMemoryBehavesLikeAMapOfBytes compares Memory with a map of bytes under random regions
// and accesses.
func TestMemoryBehavesLikeAMapOfBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := NewMemory(nil)
		model := map[uint64]*byte{}
		base := rapid.SampledFrom([]uint64{0, 1 << 20, top - 255}).Draw(t, "base")
		t.Repeat(map[string]func(*rapid.T){
			"regions": func(t *rapid.T) {
				clear(model)
				var list []Region
				at := base
				for range rapid.IntRange(0, 6).Draw(t, "regions") {
					at += rapid.SampledFrom([]uint64{0, 0, 1, 8}).Draw(t, "gap")
					n := uint64(rapid.IntRange(1, 40).Draw(t, "len"))
					if at < base || n-1 > top-at {
						break
					}
					mem := make([]byte, n)
					list = append(list, Region{at, mem})
					for i := range mem {
						model[at+uint64(i)] = &mem[i]
					}
					at += n
					if at == 0 {
						break
					}
				}
				m.SetRegions(rapid.Permutation(list).Draw(t, "order"))
			},
			"copy": func(t *rapid.T) {
				addr := base + rapid.Uint64Range(0, 260).Draw(t, "addr") - 2
				src := rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(t, "bytes")
				want := true
				for i := range src {
					if model[addr+uint64(i)] == nil || addr+uint64(i) < addr {
						want = false
					}
				}
				if got := m.Contains(addr, uint64(len(src))); got != want {
					t.Fatalf("Contains(%#x, %d) = %t", addr, len(src), got)
				}
				if err := m.Write(addr, src); (err == nil) != want {
					t.Fatalf("write %d at %#x: %v", len(src), addr, err)
				}
				back := make([]byte, len(src))
				if err := m.Read(addr, back); (err == nil) != want {
					t.Fatalf("read %d at %#x: %v", len(src), addr, err)
				}
				if want && !bytes.Equal(src, back) {
					t.Fatalf("wrote %x, read %x", src, back)
				}
				for i := range src {
					if want && *model[addr+uint64(i)] != src[i] {
						t.Fatalf("byte %d at %#x is in the wrong place", i, addr)
					}
				}
			},
		})
	})
}

// FuzzMemory gives arbitrary accesses to two adjacent regions and one apart.
func FuzzMemory(f *testing.F) {
	f.Add(uint64(0x1000), uint16(64))
	f.Add(uint64(top), uint16(2))
	f.Add(uint64(0x1ffc), uint16(8))
	f.Fuzz(func(t *testing.T, addr uint64, n uint16) {
		m := NewMemory([]Region{
			{0x1000, make([]byte, 0x1000)},
			{0x2000, make([]byte, 0x1000)},
			{top - 0xfff, make([]byte, 0x1000)},
		})
		end := addr + uint64(n) // modulo 2^64
		low := addr >= 0x1000 && addr < 0x3000 && end <= 0x3000 && end >= addr
		high := addr >= top-0xfff && (end >= addr || end == 0)
		want := n == 0 || low || high
		if got := m.Contains(addr, uint64(n)); got != want {
			t.Fatalf("Contains(%#x, %d) = %t", addr, n, got)
		}
		if err := m.Write(addr, make([]byte, n)); (err == nil) != want {
			t.Fatalf("%#x, %d: %v", addr, n, err)
		}
		v, err := m.FetchAdd64(addr, 1)
		if v != 0 || err == nil && (addr%8 != 0 || !m.Contains(addr, 8)) {
			t.Fatalf("%#x: %d, %v", addr, v, err)
		}
	})
}

func TestNoAllocations(t *testing.T) {
	m := NewMemory([]Region{{0x1000, make([]byte, 0x2000)}, {0x3000, make([]byte, 0x2000)}})
	buf := make([]byte, 0x800)
	if n := testing.AllocsPerRun(1000, func() {
		for _, addr := range []uint64{0x1000, 0x2c00, 0x3800} {
			if m.Read(addr, buf) != nil || m.Write(addr, buf) != nil || m.Store32(addr, 1) != nil || m.store64(addr, 1) != nil {
				t.Fatal("failed")
			}
			if _, err := m.Load32(addr); err != nil {
				t.Fatal(err)
			}
			if _, err := m.Load64(addr); err != nil {
				t.Fatal(err)
			}
			if _, err := m.CompareAndSwap64(addr, 1, 2); err != nil {
				t.Fatal(err)
			}
			if _, err := m.FetchAdd64(addr, 1); err != nil {
				t.Fatal(err)
			}
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func BenchmarkRead64(b *testing.B) {
	m := NewMemory([]Region{{0x1000, make([]byte, 0x2000)}})
	buf := make([]byte, 64)
	for b.Loop() {
		_ = m.Read(0x1800, buf)
	}
}

func BenchmarkLoad32(b *testing.B) {
	m := NewMemory([]Region{{0x1000, make([]byte, 0x2000)}})
	for b.Loop() {
		_, _ = m.Load32(0x1800)
	}
}

// TestAnAccessOutsideTheWindowTouchesNothing checks every access near the edges of a window. An access inside works; one that is
// outside, even in part, fails and touches nothing, also after the regions change (DEV-401).
func TestAnAccessOutsideTheWindowTouchesNothing(t *testing.T) {
	for _, c := range []struct {
		w    Window
		from uint64 // of the region from which addresses are reachable
		n    uint64
	}{
		{Window{}, 0, 0x4000},
		{Window{0x1000, 0x4000}, 0, 0x4000},
		{Window{0, 1 << 62}, 0, 0x4000},
		{Window{0x2000, 0x1000}, 0x1000, 0x1000},
		{Window{0, 0x3000}, 0, 0x2000},
		{Window{0x3000, ^uint64(0)}, 0x2000, 0x2000},
		{Window{0, 0x1000}, 0, 0},
		{Window{0x5000, 0x1000}, 0, 0},
		{Window{^uint64(0) - 0xfff, 0x1000}, 0, 0},
	} {
		mem := make([]byte, 0x4000)
		m := NewWindowed(c.w, nil)
		m.SetRegions([]Region{{Addr: 0x1000, Mem: mem[:0x1800]}, {Addr: 0x2800, Mem: mem[0x1800:]}})
		for at := uint64(0); at <= 0x4000; at += 0x800 {
			for _, n := range []uint64{1, 8, 0x1000} {
				clear(mem)
				inside := at >= c.from && at+n <= c.from+c.n
				err := m.Write(0x1000+at, bytes.Repeat([]byte{0xee}, int(n)))
				if (err == nil) != inside || m.Contains(0x1000+at, n) != inside {
					t.Errorf("%+v: %d bytes at %#x: %v", c.w, n, 0x1000+at, err)
				}
				for i, b := range mem {
					if want := inside && uint64(i) >= at && uint64(i) < at+n; (b == 0xee) != want {
						t.Fatalf("%+v: %d bytes at %#x: byte %#x is %#x", c.w, n, 0x1000+at, i, b)
					}
				}
			}
		}
	}
}

// TestRangesJoinNeighbouringRegions: ranges are what is mapped, neighbours joined.
func TestRangesJoinNeighbouringRegions(t *testing.T) {
	page := func(n int) []byte { return make([]byte, n*4096) }
	m := NewWindowed(Window{Addr: 0x1000, Size: 0x9000}, []Region{
		{Addr: 0x4000, Mem: page(1)}, {Addr: 0, Mem: page(2)}, {Addr: 0x2000, Mem: page(1)}, {Addr: 0x8000, Mem: page(16)}, {Addr: 0x100000, Mem: page(1)},
	})
	want := []Window{{0x1000, 0x2000}, {0x4000, 0x1000}, {0x8000, 0x2000}}
	for i, w := range append(want, Window{}) {
		if got, n := m.Range(i); got != w || n != len(want) {
			t.Errorf("range %d of %d: %#x, want %#x of %d", i, n, got, w, len(want))
		}
	}
	if w, n := new(Memory).Range(0); n != 0 || w != (Window{}) {
		t.Errorf("empty memory: %#x of %d", w, n)
	}
}

// TestASpanTouchesAsManyPagesAsItsBytes: how many pages bytes touch, up to the maximum of a page
// list, and 0 for invalid spans.
func TestASpanTouchesAsManyPagesAsItsBytes(t *testing.T) {
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

// TestPartsOfASpanAreWholePagesButTheEnds: the parts of a span on its pages are whole pages except
// for the first and the last, and together they are the whole span.
func TestPartsOfASpanAreWholePagesButTheEnds(t *testing.T) {
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

// TestAListIsReadInPieces: a reader copies as many pages as it may at a time, and says what is
// left.
func TestAListIsReadInPieces(t *testing.T) {
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

// TestOnlyTheNeededEntriesOfAListMustBeMapped: of each list page only the entries that the span
// needs must be mapped: two of the root, one of the last page below it.
func TestOnlyTheNeededEntriesOfAListMustBeMapped(t *testing.T) {
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

// TestAListMayTakeExactlyItsRoom: a list may take exactly the available room: 4 bytes for each page
// from the first on that does not follow the one before, allocated by the piece.
func TestAListMayTakeExactlyItsRoom(t *testing.T) {
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

// TestOfTheFirstPageOnlyTheSpansPartMustBeMapped: of the first page exactly the part from the
// span's offset on must be mapped.
func TestOfTheFirstPageOnlyTheSpansPartMustBeMapped(t *testing.T) {
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

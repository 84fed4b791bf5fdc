package queues

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// regionModel is memory page by page: the page of a file that is at each address, −1 for none.
type regionModel struct {
	file []byte // a page of it is pageLen bytes
	at   []int
	r    Regions
}

const pageLen = 16

// modelBase has pages up to the last address.
const modelBase = top - 4096*pageLen + 1

func newRegionModel(pages int) *regionModel {
	m := &regionModel{file: make([]byte, 64*pageLen), at: make([]int, pages)}
	for i := range m.at {
		m.at[i] = -1
	}
	return m
}

func (m *regionModel) addr(page int) uint64 {
	return modelBase + uint64(4096-len(m.at)+page)*pageLen
}

// add maps n pages of the file from page on. If any of the addresses is taken, nothing changes.
func (m *regionModel) add(page, from, n int) {
	m.r = m.r.With(Region{m.addr(page), m.file[from*pageLen:][:n*pageLen]})
	if slices.ContainsFunc(m.at[page:page+n], func(at int) bool { return at >= 0 }) {
		return
	}
	for i := range n {
		m.at[page+i] = from + i
	}
}

func (m *regionModel) remove(page, n int) {
	m.r = m.r.Without(m.addr(page), uint64(n)*pageLen)
	for i := range n {
		m.at[page+i] = -1
	}
}

func (m *regionModel) check(t interface{ Fatalf(string, ...any) }, w Window) {
	var want []Region // as large as they come
	var ranges []Window
	bytes := uint64(0)
	for page, at := range m.at {
		if at < 0 {
			continue
		}
		bytes += pageLen
		addr := m.addr(page)
		if page > 0 && m.at[page-1] == at-1 && at > 0 {
			last := &want[len(want)-1]
			last.Mem = last.Mem[:len(last.Mem)+pageLen]
		} else {
			want = append(want, Region{addr, m.file[at*pageLen:][:pageLen]})
		}
		if !w.holds(addr) {
			continue
		}
		if k := len(ranges); k > 0 && ranges[k-1].Addr+ranges[k-1].Size == addr {
			ranges[k-1].Size += pageLen
		} else {
			ranges = append(ranges, Window{addr, pageLen})
		}
	}
	got := slices.Collect(m.r.All())
	if !slices.EqualFunc(got, want, func(a, b Region) bool {
		return a.Addr == b.Addr && len(a.Mem) == len(b.Mem) && &a.Mem[0] == &b.Mem[0]
	}) {
		t.Fatalf("%d regions, want %d", len(got), len(want))
	}
	if m.r.Len() != len(want) || m.r.Bytes() != bytes {
		t.Fatalf("%d regions of %d bytes are said, %d of %d there", m.r.Len(), m.r.Bytes(), len(want), bytes)
	}
	for i := 0; i <= len(ranges); i += 1 + len(ranges)/20 { // of many some
		var want Window
		if i < len(ranges) {
			want = ranges[i]
		}
		if got, n := m.r.Range(w, i); got != want || n != len(ranges) {
			t.Fatalf("range %d is %#x of %d, want %#x of %d", i, got, n, want, len(ranges))
		}
	}
	mem := Memory{regions: m.r, window: w}
	for page, at := range m.at {
		addr := m.addr(page)
		if b := mem.from(addr); (b != nil) != (at >= 0 && w.holds(addr)) || b != nil && &b[0] != &m.file[at*pageLen] {
			t.Fatalf("page %d at %#x has %d bytes, want page %d of the file", page, addr, len(b), at)
		}
	}
}

// TestRegionsBehaveLikeAListOfPages maps and unmaps pages and runs of pages in any order, through every size of a
// chunk, and compares with a list of pages. Earlier Regions stay as they were.
func TestRegionsBehaveLikeAListOfPages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newRegionModel(rapid.SampledFrom([]int{8, 100, 900}).Draw(t, "pages"))
		pages := len(m.at)
		run := func(t *rapid.T) (page, n int) {
			page = rapid.IntRange(0, pages-1).Draw(t, "page")
			return page, min(rapid.SampledFrom([]int{1, 1, 2, 5, 60, pages}).Draw(t, "pages"), pages-page)
		}
		draw := rapid.Uint64().Draw(t, "seed")
		rng := rand.New(rand.NewPCG(draw, 0))
		window := Window{}
		if rapid.Bool().Draw(t, "window") {
			first := rapid.IntRange(0, pages-1).Draw(t, "first")
			window = Window{m.addr(first), uint64(rapid.IntRange(1, pages-first).Draw(t, "n")) * pageLen}
		}
		t.Repeat(map[string]func(*rapid.T){
			"map": func(t *rapid.T) {
				page, n := run(t)
				n = min(n, 64)
				m.add(page, rapid.IntRange(0, 64-n).Draw(t, "from"), n)
			},
			"unmap": func(t *rapid.T) { m.remove(run(t)) },
			"map many": func(*rapid.T) {
				for range pages {
					m.add(rng.IntN(pages), rng.IntN(64), 1)
				}
			},
			"unmap many": func(t *rapid.T) {
				for range rapid.IntRange(0, pages).Draw(t, "n") {
					m.remove(rng.IntN(pages), 1)
				}
			},
			"": func(t *rapid.T) {
				was, before := m.r, slices.Collect(m.r.All())
				m.check(t, window)
				m.add(0, 0, 1)
				m.remove(pages/2, pages-pages/2)
				if !slices.EqualFunc(before, slices.Collect(was.All()), func(a, b Region) bool { return a.Addr == b.Addr && len(a.Mem) == len(b.Mem) }) {
					t.Fatalf("Regions changed")
				}
				m.check(t, window)
			},
		})
	})
}

// TestChunksAreNeitherEmptyNorTooLarge: chunks are neither empty nor too large, and there are not many more than
// needed, whatever regions were added and removed.
func TestChunksAreNeitherEmptyNorTooLarge(t *testing.T) {
	const n = 20000
	mem := make([]byte, 1)
	for _, name := range []string{"upwards", "downwards", "random"} {
		perm := rand.New(rand.NewPCG(1, 2)).Perm(n)
		if name != "random" {
			slices.Sort(perm)
		}
		if name == "downwards" {
			slices.Reverse(perm)
		}
		var r Regions
		for _, i := range perm {
			r = r.With(Region{uint64(i) * 2, mem})
		}
		check := func(want int) {
			t.Helper()
			if r.len != want || len(r.chunks) > 1+4*want/chunkMax {
				t.Errorf("%s: %d regions, want %d, in %d chunks", name, r.len, want, len(r.chunks))
			}
			for _, c := range r.chunks {
				if len(c.list) == 0 || len(c.list) > chunkMax || c.addr != c.list[0].Addr {
					t.Fatalf("%s: a chunk of %d", name, len(c.list))
				}
			}
		}
		check(n)
		for k, i := range perm { // one of a hundred stays
			if k%100 != 0 {
				r = r.Without(uint64(i)*2, 1)
			}
		}
		check(n / 100)
	}
}

// TestRegionsSmallChunks: a chunk that has become small is merged with a neighbour, before or after
// it, if one chunk can hold both.
func TestRegionsSmallChunks(t *testing.T) {
	for _, c := range []struct{ neighbour, small, left int }{ // regions; of the small chunk when both become one
		{256, 1, 0}, {200, 57, 56}, {192, 64, 63}, {100, 64, 63},
	} {
		for _, behind := range []bool{false, true} { // the small one is
			var list []Region
			for i := range uint64(2 * chunkMax) {
				list = append(list, Region{i * 2, make([]byte, 1)})
			}
			r := NewRegions(list)
			if len(r.chunks) != 2 {
				t.Fatalf("%d chunks", len(r.chunks))
			}
			// shrink leaves that many regions of a chunk.
			shrink := func(chunk, left int) {
				for i := chunkMax - 1; i >= left; i-- {
					r = r.Without(list[chunk*chunkMax+i].Addr, 1)
				}
			}
			small, neighbour := 0, 1
			if behind {
				small, neighbour = 1, 0
			}
			shrink(neighbour, c.neighbour)
			shrink(small, c.small)
			if len(r.chunks) != 2 || len(r.chunks[small].list) != c.small || len(r.chunks[neighbour].list) != c.neighbour {
				t.Errorf("%+v, behind %t: %d chunks while they are not small, or do not fit", c, behind, len(r.chunks))
				continue
			}
			r = r.Without(list[small*chunkMax+c.small-1].Addr, 1)
			if len(r.chunks) != 1 || r.Len() != c.neighbour+c.left {
				t.Errorf("%+v, behind %t: %d chunks of %d regions", c, behind, len(r.chunks), r.Len())
			}
		}
	}
}

// BenchmarkScattered maps a page among many, and takes it away.
func BenchmarkScattered(b *testing.B) {
	mem := make([]byte, 1)
	var r Regions
	for i := range uint64(60000) {
		r = r.With(Region{i * 4, mem})
	}
	b.ReportAllocs()
	for i := uint64(0); b.Loop(); i++ {
		at := i*7919%60000*4 + 2
		r = r.With(Region{at, mem}).Without(at, 1)
	}
}

// TestTheFirstAndLastAddressCanBeMapped: the first and the last address can be mapped and taken
// away.
func TestTheFirstAndLastAddressCanBeMapped(t *testing.T) {
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

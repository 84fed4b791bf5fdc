package queues

import (
	"cmp"
	"iter"
	"slices"
)

// Regions is an immutable set of regions in ascending order of addresses, without overlaps. Any
// number of goroutines may share it; With and Without return a changed copy. Behind an IOMMU there
// are tens of thousands of regions, and one is added or removed with each page that the guest maps.
// The cost of that grows with the square root of their number. The zero value is empty.
type Regions struct {
	chunks []chunk // none is empty
	len    int
	bytes  uint64
}

// chunk is a group of consecutive regions.
type chunk struct {
	addr  uint64 // of the first
	list  []Region
	holes int // gaps between them: a region does not begin where the previous one ends
}

// chunkMax is the maximum of regions in a chunk.
const chunkMax = 256

// NewRegions returns the regions of a list, which it does not keep. A region that is empty, passes
// 2^64 or overlaps an earlier one in address order is left out.
func NewRegions(list []Region) (r Regions) {
	sorted := slices.Clone(list)
	slices.SortStableFunc(sorted, func(a, b Region) int { return cmp.Compare(a.Addr, b.Addr) })
	kept := sorted[:0]
	for _, g := range sorted {
		if !g.ok() || len(kept) > 0 && kept[len(kept)-1].last() >= g.Addr {
			continue
		}
		kept = append(kept, g)
	}
	clear(sorted[len(kept):]) // keep no reference to unused mappings
	r.replace(place{}, place{}, kept)
	return r
}

// Len returns the number of regions.
func (r Regions) Len() int { return r.len }

// Bytes returns the number of bytes in the regions.
func (r Regions) Bytes() uint64 { return r.bytes }

// All iterates over the regions.
func (r Regions) All() iter.Seq[Region] {
	return func(yield func(Region) bool) {
		for i := range r.chunks {
			for _, g := range r.chunks[i].list {
				if !yield(g) {
					return
				}
			}
		}
	}
}

// With returns the regions with one more. The new region is joined with its neighbours if they are
// adjacent in addresses and in memory. A region that is empty, passes 2^64 or overlaps another is
// left out.
func (r Regions) With(g Region) Regions {
	if !g.ok() {
		return r
	}
	at := r.find(g.Addr)
	from, to := at, at
	if before, ok := r.before(at); ok {
		b := r.region(before)
		if b.last() >= g.Addr {
			return r
		}
		if joined, ok := b.join(g); ok {
			from, g = before, joined
		}
	}
	if after, ok := r.settle(at); ok {
		a := r.region(after)
		if a.Addr <= g.last() {
			return r
		}
		if joined, ok := g.join(*a); ok {
			to, g = place{after.chunk, after.at + 1}, joined
		}
	}
	r.replace(from, to, []Region{g})
	return r
}

// Without returns the regions without the n bytes from addr on, which must not pass 2^64.
func (r Regions) Without(addr, n uint64) Regions {
	if n == 0 {
		return r
	}
	last := addr + (n - 1)
	from := r.find(addr)
	var left []Region
	if before, ok := r.before(from); ok {
		if b := r.region(before); b.last() >= addr {
			from = before
			left = append(left, Region{b.Addr, b.Mem[:addr-b.Addr]})
		}
	}
	to := place{}
	if last < ^uint64(0) {
		to = r.find(last + 1)
	} else {
		to.chunk = len(r.chunks)
	}
	if end, ok := r.before(to); ok {
		if e := r.region(end); e.last() > last && e.Addr <= last {
			left = append(left, Region{last + 1, e.Mem[last+1-e.Addr:]})
		}
	}
	if from == to && len(left) == 0 {
		return r
	}
	r.replace(from, to, left)
	return r
}

// at returns the only region that may contain an address, or an empty one.
func (r *Regions) at(addr uint64) Region {
	lo, hi := 0, len(r.chunks)
	for lo < hi { // first chunk that begins after addr
		mid := int(uint(lo+hi) / 2)
		if r.chunks[mid].addr <= addr {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return Region{}
	}
	list := r.chunks[lo-1].list
	lo, hi = 0, len(list)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if list[mid].Addr <= addr {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return list[lo-1]
}

// Range returns the i-th maximal range of addresses that are mapped and lie in a window, in
// ascending order, and the number of ranges. A range of size 0 means that there is no i-th.
func (r Regions) Range(in Window, i int) (w Window, ranges int) {
	end := uint64(0)                          // of the last range
	take := func(addr, n uint64, holes int) { // n bytes of addresses with so many gaps between them
		if ranges == 0 || addr != end {
			ranges++
		}
		if ranges-1 == i && holes == 0 {
			if w.Size == 0 {
				w.Addr = addr
			}
			w.Size += n
		}
		ranges += holes
		end = addr + n
	}
	for k := range r.chunks {
		c := &r.chunks[k]
		first, last := c.addr, c.list[len(c.list)-1].last()
		if whole := in.holds(first) && in.holds(last); whole && (c.holes == 0 || ranges-1 > i || ranges+c.holes < i) {
			take(first, last-first+1, c.holes)
			continue
		}
		for _, g := range c.list {
			if g = in.cut(g); len(g.Mem) > 0 {
				take(g.Addr, uint64(len(g.Mem)), 0)
			}
		}
	}
	return w, ranges
}

// ok reports whether a region has bytes, and an address for each.
func (g *Region) ok() bool {
	n := uint64(len(g.Mem))
	return n > 0 && n-1 <= ^uint64(0)-g.Addr
}

// last returns the address of the last byte.
func (g *Region) last() uint64 { return g.Addr + uint64(len(g.Mem)-1) }

// join returns one region made of two, if next follows g in addresses and in memory. The memory
// continues if the slice of g has spare capacity there.
func (g *Region) join(next Region) (Region, bool) {
	n := len(g.Mem)
	if n == cap(g.Mem) || g.last()+1 != next.Addr || &g.Mem[:n+1][n] != &next.Mem[0] {
		return *g, false
	}
	return Region{g.Addr, g.Mem[:n+len(next.Mem)]}, true
}

// place is the position of a region, or the position behind the last region of a chunk.
type place struct{ chunk, at int }

func (r *Regions) region(p place) *Region { return &r.chunks[p.chunk].list[p.at] }

// find returns the place of the first region that begins at or after addr.
func (r *Regions) find(addr uint64) place {
	c, found := slices.BinarySearchFunc(r.chunks, addr, func(c chunk, addr uint64) int { return cmp.Compare(c.addr, addr) })
	if found || c == 0 {
		return place{c, 0}
	}
	at, _ := slices.BinarySearchFunc(r.chunks[c-1].list, addr, func(g Region, addr uint64) int { return cmp.Compare(g.Addr, addr) })
	return place{c - 1, at}
}

// before returns the previous place, if there is one.
func (r *Regions) before(p place) (place, bool) {
	if p.at > 0 {
		return place{p.chunk, p.at - 1}, true
	}
	if p.chunk == 0 {
		return p, false
	}
	return place{p.chunk - 1, len(r.chunks[p.chunk-1].list) - 1}, true
}

// settle returns the place of the region at p or behind it, if there is one.
func (r *Regions) settle(p place) (place, bool) {
	if p.chunk < len(r.chunks) && p.at == len(r.chunks[p.chunk].list) {
		p = place{p.chunk + 1, 0}
	}
	return p, p.chunk < len(r.chunks)
}

// replace replaces the regions from one place up to another with others. It writes to no chunk of
// r.
func (r *Regions) replace(from, to place, with []Region) {
	first, end := from.chunk, to.chunk // chunks that are rebuilt
	var list []Region
	if first < len(r.chunks) {
		list = r.chunks[first].list[:from.at]
	}
	var tail []Region
	if end < len(r.chunks) {
		tail = r.chunks[end].list[to.at:]
		end++
	}
	list = slices.Concat(list, with, tail)
	// Merge a chunk that has become small with its neighbour, so that there are few chunks.
	if len(list) < chunkMax/4 && first > 0 && len(list)+len(r.chunks[first-1].list) <= chunkMax {
		first--
		list = slices.Concat(r.chunks[first].list, list)
	}
	if len(list) < chunkMax/4 && end < len(r.chunks) && len(list)+len(r.chunks[end].list) <= chunkMax {
		list = append(list, r.chunks[end].list...)
		end++
	}
	for _, c := range r.chunks[first:end] {
		r.len -= len(c.list)
		r.bytes -= c.bytes()
	}
	var parts []chunk
	for n := (len(list) + chunkMax - 1) / chunkMax; n > 0; n-- { // equally large parts
		k := len(list) / n
		c := newChunk(list[:k:k])
		parts, list = append(parts, c), list[k:]
		r.len += len(c.list)
		r.bytes += c.bytes()
	}
	r.chunks = slices.Concat(r.chunks[:first], parts, r.chunks[end:])
}

func newChunk(list []Region) chunk {
	c := chunk{addr: list[0].Addr, list: list}
	for i := 1; i < len(list); i++ {
		if list[i-1].last()+1 != list[i].Addr {
			c.holes++
		}
	}
	return c
}

func (c *chunk) bytes() (n uint64) {
	for i := range c.list {
		n += uint64(len(c.list[i].Mem))
	}
	return n
}

package verbs

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// TestListsBehaveLikeOneRunOfBytes: a scatter/gather list is its elements' bytes, one behind the
// other: any part of it is read, written and found where it is, element for element.
func TestListsBehaveLikeOneRunOfBytes(t *testing.T) {
	g := newGuest(t, Limits{})
	m := g.region(g.pdn, 4*abi.PageSize, allRights)
	mem := g.mem(m.iova, int(m.length))
	for i := range mem {
		mem[i] = byte(i*7 + i>>8)
	}
	rapid.Check(t, func(t *rapid.T) {
		var w SendWR
		var flat []uint64 // addresses of the bytes
		var ends []int    // of the elements
		for range rapid.IntRange(1, 5).Draw(t, "elements") {
			n := rapid.IntRange(1, 40).Draw(t, "length")
			at := m.iova + uint64(rapid.IntRange(0, int(m.length)-n).Draw(t, "at"))
			w.SGEs = append(w.SGEs, SGE{MR: m, Addr: at, Length: uint32(n)})
			for i := range n {
				flat = append(flat, at+uint64(i))
			}
			ends = append(ends, len(flat))
		}
		w.Length = uint32(len(flat))
		off := rapid.IntRange(0, len(flat)-1).Draw(t, "offset")
		n := rapid.IntRange(0, len(flat)-off).Draw(t, "bytes")
		want := make([]byte, n)
		for i := range want {
			want[i] = mem[flat[off+i]-m.iova]
		}
		got := make([]byte, n)
		if err := w.SGEs.Gather(w.at(uint32(off)), got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes at %d: %v, % x, want % x", n, off, err, got, want)
		}
		var c Cursor
		c.Advance(w.SGEs, uint32(off/2))
		c.Advance(w.SGEs, uint32(off-off/2))
		if err := w.SGEs.Gather(c, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("in two steps: %v, % x, want % x", err, got, want)
		}
		addr, key, left := w.SGEs.At(w.at(uint32(off)))
		end := ends[0]
		for _, e := range ends {
			if end <= off {
				end = e
			}
		}
		if addr != flat[off] || key != m.key || int(left) != end-off {
			t.Fatalf("at %d: %#x, %d bytes, want %#x, %d", off, addr, left, flat[off], end-off)
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		var list SGL // of elements that do not overlap
		var flat []int
		for i := range rapid.IntRange(1, 5).Draw(t, "elements") {
			n := rapid.IntRange(1, 40).Draw(t, "length")
			list = append(list, SGE{MR: m, Addr: m.iova + uint64(i*100), Length: uint32(n)})
			for k := range n {
				flat = append(flat, i*100+k)
			}
		}
		off := rapid.IntRange(0, len(flat)).Draw(t, "offset")
		src := rapid.SliceOfN(rapid.Byte(), 0, len(flat)-off).Draw(t, "data")
		clear(mem[:600])
		want := make([]byte, 600)
		for i, b := range src {
			want[flat[off+i]] = b
		}
		var c Cursor
		c.Advance(list, uint32(off))
		if err := list.Scatter(c, src); err != nil || !bytes.Equal(mem[:600], want) {
			t.Fatalf("%d bytes to %d: %v", len(src), off, err)
		}
	})
}

// TestEachByteOfAReadBelongsToAnElement: the list of a READ has an element at each byte of the
// message, and none behind it.
func TestEachByteOfAReadBelongsToAnElement(t *testing.T) {
	m := &MR{key: 0x55}
	q := &QP{}
	w := &SendWR{
		Request: transport.Request{Length: 30},
		SGEs:    SGL{{MR: m, Addr: 0x100, Length: 10}, {MR: m, Addr: 0x200, Length: 20}},
	}
	q.send.works.ring = []*SendWR{w}
	for _, c := range []struct {
		offset    uint32
		addr      uint64
		key, left uint32
	}{
		{0, 0x100, 0x55, 10}, {9, 0x109, 0x55, 1}, {10, 0x200, 0x55, 20}, {29, 0x213, 0x55, 1}, {30, 0, 0, 0}, {31, 0, 0, 0},
	} {
		if addr, key, left := q.Element(&w.Request, c.offset); addr != c.addr || key != c.key || left != c.left {
			t.Errorf("at %d: %#x, key %#x, %d bytes", c.offset, addr, key, left)
		}
	}
}

// TestACursorStopsAtTheEndOfItsList: a place in a list is at its end when the list is used up, and
// goes no further.
func TestACursorStopsAtTheEndOfItsList(t *testing.T) {
	list := SGL{{Length: 10}, {Length: 20}}
	for n, want := range map[uint32]Cursor{29: {1, 19}, 30: {2, 0}, 31: {2, 0}} {
		var c Cursor
		if c.Advance(list, n); c != want {
			t.Errorf("%d bytes on: %+v, want %+v", n, c, want)
		}
	}
}

// TestEmptyElementsAreLeftOut: empty elements are left out, whatever they name; of the others each
// is checked, and their lengths are added up.
func TestEmptyElementsAreLeftOut(t *testing.T) {
	g := newGuest(t, Limits{})
	m := g.region(g.pdn, 100, abi.AccessLocalWrite)
	read := func(need uint32, elements ...abi.SGE) (SGL, uint64, bool) {
		b := make([]byte, len(elements)*abi.SGESize)
		for i := range elements {
			elements[i].Marshal(b[i*abi.SGESize:])
		}
		return g.SGEs(m.pd, false, nil, b, len(elements), need)
	}
	list, total, ok := read(abi.AccessLocalWrite, m.sge(0, 60), abi.SGE{LKey: 0x777}, m.sge(60, 40), m.sge(10, 1))
	if !ok || total != 101 || len(list) != 3 || list[1] != (SGE{MR: m, Addr: m.iova + 60, Length: 40}) {
		t.Errorf("%t, %d bytes of %d elements", ok, total, len(list))
	}
	if _, _, ok := read(0); !ok {
		t.Error("no elements are refused")
	}
	for name, x := range map[string]abi.SGE{"beyond the region": m.sge(60, 41), "no region": {Addr: m.iova, Length: 1, LKey: 0x777}} {
		if _, _, ok := read(0, m.sge(0, 60), x); ok {
			t.Errorf("%s: taken", name)
		}
	}
	if _, _, ok := read(abi.AccessRemoteRead, m.sge(0, 1)); ok {
		t.Error("without the right: taken")
	}
}

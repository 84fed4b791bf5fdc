package arena

import (
	"encoding/binary"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// heapSource is a Source without a device: page i of chunk c has the address c<<32 + permuted i.
type heapSource struct {
	chunks, minPages, maxChunks int
}

func (h *heapSource) Grow(n int) (Chunk, error) {
	if h.chunks == h.maxChunks {
		return Chunk{}, &ExhaustedError{Want: n, Limit: 0}
	}
	count := max(pages(n), h.minPages)
	c := Chunk{Mem: make([]byte, count*PageSize), Addrs: make([]uint64, count)}
	h.chunks++
	for i := range c.Addrs {
		c.Addrs[i] = uint64(h.chunks)<<40 + uint64(count-i)*PageSize
	}
	return c, nil
}

func (h *heapSource) Close() error { return nil }

// Blocks never overlap and are zeroed, and when all are freed each chunk is one free extent again.
// A block that was allocated before Hold and freed since is not given out again until Release.
func TestBlocksOfAPoolNeverOverlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := NewPool(&heapSource{minPages: 16, maxChunks: 8})
		type freed struct {
			bytes []byte
			mark  byte
		}
		live, old := map[*Block]byte{}, map[*Block]bool{} // of before Hold
		var kept []freed
		held := false
		next := byte(1)
		want := 0
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				n := rapid.IntRange(1, 6*PageSize).Draw(t, "n")
				b, err := p.Alloc(n)
				if err != nil {
					if !errors.Is(err, ErrExhausted) {
						t.Fatal(err)
					}
					return
				}
				if len(b.Bytes()) != n || len(b.Pages()) != pages(n) {
					t.Fatalf("%d bytes: got %d bytes in %d pages", n, len(b.Bytes()), len(b.Pages()))
				}
				for _, v := range b.Bytes() {
					if v != 0 {
						t.Fatal("not zeroed")
					}
				}
				for i := range b.Bytes() {
					b.Bytes()[i] = next
				}
				live[b] = next
				next++
				if next == 0 {
					next = 1
				}
				want += pages(n) * PageSize
			},
			"free": func(t *rapid.T) {
				for b, mark := range live {
					for _, v := range b.Bytes() {
						if v != mark {
							t.Fatal("blocks overlap")
						}
					}
					if held && old[b] {
						kept = append(kept, freed{b.Bytes(), mark})
					} else {
						want -= len(b.Pages()) * PageSize
					}
					b.Free()
					b.Free()
					delete(live, b)
					return
				}
			},
			"hold": func(*rapid.T) {
				p.Hold()
				held = true
				for b := range live {
					old[b] = true
				}
			},
			"release": func(*rapid.T) {
				p.Release()
				held = false
				for _, f := range kept {
					want -= pages(len(f.bytes)) * PageSize
				}
				kept = nil
			},
			"": func(t *rapid.T) {
				for _, f := range kept {
					for _, v := range f.bytes {
						if v != f.mark {
							t.Fatal("what is kept was given out")
						}
					}
				}
				if got := p.InUse(); got != want {
					t.Fatalf("in use %d, want %d", got, want)
				}
			},
		})
		for b := range live {
			b.Free()
		}
		p.Release()
		for _, c := range p.chunks {
			if len(c.free) != 1 || c.free[0] != (extent{0, len(c.Addrs)}) {
				t.Fatalf("free list after freeing everything: %v", c.free)
			}
		}
	})
}

func TestAPoolRefusesEmptyBlocksAndUseAfterClose(t *testing.T) {
	p := NewPool(&heapSource{minPages: 1, maxChunks: 1})
	for _, n := range []int{0, -1} {
		if _, err := p.Alloc(n); err == nil {
			t.Errorf("Alloc(%d) succeeded", n)
		}
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Alloc(1); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// readList follows a page list as a device does.
func readList(t *testing.T, p *Pool, root uint64, levels uint8, n int) []uint64 {
	t.Helper()
	at := map[uint64][]byte{}
	for _, c := range p.chunks {
		for i, a := range c.Addrs {
			at[a] = c.Mem[i*PageSize : (i+1)*PageSize]
		}
	}
	list := []uint64{root}
	for l := int(levels); l > 0; l-- {
		per := 1 // pages each entry of this level stands for
		for range l - 1 {
			per *= entriesPerPage
		}
		var out []uint64
		for i := range (n + per - 1) / per {
			page, ok := at[list[i/entriesPerPage]]
			if !ok {
				t.Fatalf("level %d: address %#x is no page of ours", l, list[i/entriesPerPage])
			}
			out = append(out, binary.LittleEndian.Uint64(page[i%entriesPerPage*8:]))
		}
		list = out
	}
	return list
}

func TestAPageListHasEachAddressInItsPlace(t *testing.T) {
	for _, c := range []struct {
		pages  int
		levels uint8
	}{{1, 1}, {2, 1}, {512, 1}, {513, 2}, {1024, 2}, {512 * 512, 2}, {512*512 + 1, 3}} {
		p := NewPool(&heapSource{minPages: 64, maxChunks: 16})
		addrs := make([]uint64, c.pages)
		for i := range addrs {
			addrs[i] = uint64(i+7) << 13
		}
		l, err := p.NewPageList(addrs)
		if err != nil {
			t.Fatal(err)
		}
		if l.Levels != c.levels {
			t.Errorf("%d pages: %d levels, want %d", c.pages, l.Levels, c.levels)
		}
		got := readList(t, p, l.Root, l.Levels, c.pages)
		for i := range addrs {
			if got[i] != addrs[i] {
				t.Fatalf("%d pages: entry %d is %#x, want %#x", c.pages, i, got[i], addrs[i])
			}
		}
		l.Free()
		if n := p.InUse(); n != 0 {
			t.Errorf("%d pages: %d bytes in use after Free", c.pages, n)
		}
	}
}

func TestPageListRefusals(t *testing.T) {
	p := NewPool(&heapSource{minPages: 1, maxChunks: 1})
	if _, err := p.NewPageList(nil); err == nil {
		t.Error("empty list accepted")
	}
	if _, err := p.NewPageList(make([]uint64, 513)); !errors.Is(err, ErrExhausted) {
		t.Errorf("list larger than the memory: %v", err)
	}
	if n := p.InUse(); n != 0 {
		t.Errorf("a failed list keeps %d bytes", n)
	}
}

package table

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

func TestATableHoldsWhatAMapWould(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, model := New[uint16, int](), map[uint16]int{}
		key := rapid.Uint16Range(0, 200)
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				k, v := key.Draw(t, "key"), rapid.Int().Draw(t, "value")
				a.Set(k, v)
				model[k] = v
			},
			"delete": func(t *rapid.T) {
				k := key.Draw(t, "key")
				a.Delete(k)
				delete(model, k)
			},
			"": func(t *rapid.T) {
				all := map[uint16]int{}
				a.Each(func(k uint16, v int) { all[k] = v })
				if !maps.Equal(all, model) || a.Len() != len(model) {
					t.Fatalf("%v, %d keys, want %v", all, a.Len(), model)
				}
				for k := range uint16(201) {
					v, ok := a.Find(k)
					if w, want := model[k]; ok != want || v != w {
						t.Fatalf("key %d: %d, %v", k, v, ok)
					}
				}
			},
		})
	})
}

// TestReadersAlwaysFindKeysThatStay: keys that stay are found at all times, whatever other keys are added and removed
// meanwhile.
func TestReadersAlwaysFindKeysThatStay(t *testing.T) {
	a := New[uint32, uint32]()
	const stays = 64
	for k := range uint32(stays) {
		a.Set(k, k)
	}
	var end atomic.Bool
	var readers sync.WaitGroup
	for i := range uint64(2) {
		readers.Go(func() {
			r := rand.New(rand.NewPCG(1, i))
			for !end.Load() {
				if k := r.Uint32N(stays); true {
					if v, ok := a.Find(k); !ok || v%stays != k {
						t.Errorf("key %d: %d, %v", k, v, ok)
						return
					}
				}
				if v, ok := a.Find(stays + r.Uint32N(4096)); ok && v < stays {
					t.Errorf("value %d", v)
					return
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(2, 2))
	for n := range uint32(20_000) {
		switch k := stays + r.Uint32N(4096); n % 3 {
		case 0:
			a.Delete(k)
		case 1:
			a.Set(k, k)
		default:
			a.Set(k%stays, k%stays+stays*(n%8))
		}
	}
	end.Store(true)
	readers.Wait()
}

func TestFindDoesNotAllocate(t *testing.T) {
	a := New[netip.Addr, int]()
	k := netip.MustParseAddr("fd00::1")
	a.Set(k, 1)
	if n := testing.AllocsPerRun(100, func() {
		if _, ok := a.Find(k); !ok {
			t.Fatal("not found")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkFind(b *testing.B) {
	a := New[netip.Addr, int]()
	var keys [1024]netip.Addr
	for i := range keys {
		keys[i] = netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		a.Set(keys[i], i)
	}
	for i := 0; b.Loop(); i++ {
		if v, ok := a.Find(keys[i%len(keys)]); !ok || v != i%len(keys) {
			b.Fatal(v)
		}
	}
}

package ring_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/internal/ring"
)

// TestAQueueHoldsWhatASliceWould compares a Queue with a slice.
func TestAQueueHoldsWhatASliceWould(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q ring.Queue[int]
		var want []int
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"push": func(*rapid.T) {
				next++
				*q.Push() = next
				want = append(want, next)
			},
			"front": func(*rapid.T) {
				next++
				*q.PushFront() = next
				want = slices.Insert(want, 0, next)
			},
			"pop": func(t *rapid.T) {
				if len(want) == 0 {
					return
				}
				if got := *q.Pop(); got != want[0] {
					t.Fatalf("popped %d, want %d", got, want[0])
				}
				want = want[1:]
			},
			"": func(t *rapid.T) {
				if q.Len() != len(want) {
					t.Fatalf("length %d, want %d", q.Len(), len(want))
				}
				for i, v := range want {
					if got := *q.At(i); got != v {
						t.Fatalf("element %d is %d, want %d", i, got, v)
					}
				}
			},
		})
	})
}

// TestAWindowHoldsWhatAMapWould compares a Window, whose base moves on as a protocol's does, with a map.
func TestAWindowHoldsWhatAMapWould(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w ring.Window[uint32]
		base := rapid.Uint32().Draw(t, "base")
		want := map[uint32]*uint32{}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				seq := base + rapid.Uint32Range(0, 300).Draw(t, "ahead")
				v := seq
				w.Put(base, seq, &v)
				want[seq] = &v
			},
			"clear": func(t *rapid.T) {
				seq := base + rapid.Uint32Range(0, w.Capacity()-1).Draw(t, "ahead")
				w.Clear(seq)
				delete(want, seq)
			},
			"move": func(t *rapid.T) {
				for range rapid.IntRange(1, 50).Draw(t, "by") {
					if w.At(base, base) != nil {
						w.Clear(base)
					}
					delete(want, base)
					base++
				}
			},
			"": func(t *rapid.T) {
				for seq := base - 3; seq != base+310; seq++ {
					if got := w.At(base, seq); got != want[seq] {
						t.Fatalf("at %d of base %d: %v, want %v", seq, base, got, want[seq])
					}
				}
				n := 0
				for v := range w.All() {
					if want[*v] != v {
						t.Fatalf("All yields %d", *v)
					}
					n++
				}
				if n != len(want) {
					t.Fatalf("All yields %d of %d", n, len(want))
				}
			},
		})
	})
}

func TestRingsAllocateNothing(t *testing.T) {
	var q ring.Queue[[100]byte]
	var w ring.Window[int]
	var v int
	base := uint32(0)
	round := func() {
		for i := range uint32(100) {
			q.Push()[0] = byte(i)
			w.Put(base, base+i, &v)
		}
		for range 100 {
			q.Pop()
			w.Clear(base)
			base++
		}
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

package guest

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestCQSet checks that numbers of all generations are held once, in order, and can be added again
// after they were taken.
func TestCQSet(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var s cqSet
	for range 50 {
		var want []uint32
		seen := map[uint32]bool{}
		for range r.IntN(2000) {
			n := r.Uint32N(500) | r.Uint32()&0xff000000
			if r.IntN(100) == 0 {
				n = 0xffffffff // abi.AdminCQ
			}
			if s.add(n); !seen[n] {
				want = append(want, n)
			}
			seen[n] = true
		}
		if !slices.Equal(s.list, want) {
			t.Fatalf("%d numbers, want %d", len(s.list), len(want))
		}
		if s.drop(s.len()); s.len() != 0 || len(s.pages) > maxPages {
			t.Fatalf("%d numbers and %d pages after all were taken", s.len(), len(s.pages))
		}
	}
	for n := range uint32(1 << 20) { // would take minutes with a linear search
		s.add(n)
		s.add(n)
	}
	if s.len() != 1<<20 {
		t.Errorf("%d numbers", s.len())
	}
}

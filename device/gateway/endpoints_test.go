package gateway

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestEndpointsComeAndGo: ports can be removed in any order; the others stay and are found by
// function.
func TestEndpointsComeAndGo(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		g := New(0, NewRoutes(1400))
		var there []*Endpoint
		for n := range uint32(100) {
			if len(there) > 0 && rng.IntN(2) == 0 {
				i := rng.IntN(len(there))
				g.RemoveEndpoint(there[i])
				there = slices.Delete(there, i, i+1)
			} else {
				there = append(there, g.AddEndpoint("vp", n, MAC{}))
			}
			if len(g.ports) != len(there) {
				t.Fatalf("seed %d: %d ports, want %d", seed, len(g.ports), len(there))
			}
			for _, p := range there {
				if !slices.Contains(g.ports, p) || g.Endpoint(p.Function) != p {
					t.Fatalf("seed %d: the port of function %d is gone, and another was removed", seed, p.Function)
				}
			}
		}
	}
}

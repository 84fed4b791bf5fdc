package fair_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/internal/fair"
)

type flow struct {
	fair.Flow[flow]
	id, cost, sent int
}

// TestSharesByWeight: whatever the costs of their turns and the weights, flows that always have
// more get shares of the cost in proportion to their weights, to within two rounds.
func TestSharesByWeight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := fair.Round[flow]{Quantum: rapid.IntRange(1, 5000).Draw(t, "quantum")}
		flows := make([]flow, rapid.IntRange(2, 8).Draw(t, "flows"))
		most := 0
		for i := range flows {
			f := &flows[i]
			f.Weight, f.cost = rapid.IntRange(0, 5).Draw(t, "weight"), rapid.IntRange(1, 9000).Draw(t, "cost")
			most = max(most, f.cost)
			r.Enter(&f.Flow, f, false)
		}
		for range 3000 {
			f := r.Next()
			f.Charge(f.cost)
			f.sent += f.cost
			r.Settle(&f.Flow, true, false)
		}
		for i := range flows {
			a, b := &flows[0], &flows[i]
			wa, wb := max(a.Weight, 1), max(b.Weight, 1)
			if diff := a.sent*wb - b.sent*wa; max(diff, -diff) > 2*wa*wb*(r.Quantum+most) {
				t.Fatalf("weights %d and %d sent %d and %d", wa, wb, a.sent, b.sent)
			}
		}
	})
}

// TestFlowsWithWorkAreServedExpressOnesFirst: each flow with work is served in the end, the express ones before the others.
func TestFlowsWithWorkAreServedExpressOnesFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := fair.Round[flow]{Quantum: 100}
		flows := make([]flow, 6)
		work, express := map[*flow]int{}, map[*flow]bool{}
		for i := range flows {
			flows[i].id = i
		}
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(t *rapid.T) {
				f := &flows[rapid.IntRange(0, len(flows)-1).Draw(t, "flow")]
				if work[f] == 0 {
					express[f] = rapid.Bool().Draw(t, "express")
				}
				work[f] += rapid.IntRange(1, 5).Draw(t, "work")
				r.Enter(&f.Flow, f, express[f])
			},
			"leave": func(t *rapid.T) {
				f := &flows[rapid.IntRange(0, len(flows)-1).Draw(t, "flow")]
				f.Leave()
				work[f] = 0
			},
			"turn": func(t *rapid.T) {
				urgent := r.Urgent()
				f := r.Next()
				if f == nil {
					return
				}
				if work[f] == 0 || express[f] != urgent {
					t.Fatalf("turn of flow %d with work %d, express %v, urgent %v", f.id, work[f], express[f], urgent)
				}
				f.Charge(rapid.IntRange(0, 400).Draw(t, "cost"))
				work[f]--
				express[f] = rapid.Bool().Draw(t, "express")
				r.Settle(&f.Flow, work[f] > 0, express[f])
			},
			"": func(t *rapid.T) {
				busy := false
				for i := range flows {
					f := &flows[i]
					busy = busy || work[f] > 0
					if f.Waits() != (work[f] > 0) {
						t.Fatalf("flow %d waits %v with work %d", f.id, f.Waits(), work[f])
					}
				}
				if r.Empty() == busy {
					t.Fatalf("empty %v, busy %v", r.Empty(), busy)
				}
			},
		})
		for turns := 0; !r.Empty(); turns++ {
			f := r.Next()
			f.Charge(400)
			work[f]--
			r.Settle(&f.Flow, work[f] > 0, false)
			if turns > 10000 {
				t.Fatal("it never ends")
			}
		}
	})
}

func TestRoundsAllocateNothing(t *testing.T) {
	r := fair.Round[flow]{Quantum: 100}
	flows := make([]flow, 10)
	n := testing.AllocsPerRun(100, func() {
		for i := range flows {
			r.Enter(&flows[i].Flow, &flows[i], i == 3)
		}
		for !r.Empty() {
			f := r.Next()
			f.Charge(30)
			f.sent++
			r.Settle(&f.Flow, f.sent%7 != 0, false)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

package scenario_test

import (
	"path/filepath"
	"reflect"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/sim/scenario"
	"github.com/falcon-vnic/vnic/falcon/sim"
)

const shipped = "../../../../falcon/sim/scenarios"

func load(tb testing.TB, name string) *sim.Scenario {
	tb.Helper()
	s, err := scenario.Load(filepath.Join(shipped, name+".yaml"))
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// TestShipped runs every shipped scenario, shortened, and holds those that promise something to it,
// whatever the seed.
func TestShipped(t *testing.T) {
	promises := map[string]func(t *testing.T, r *sim.Result){
		"loss1pct": func(t *testing.T, r *sim.Result) {
			atLeast(t, "goodput over lossless", *r.GoodputOverIdeal, 0.95)
			atLeast(t, "loss", r.LossShare, 0.009)
		},
		"reorder2": func(t *testing.T, r *sim.Result) {
			atLeast(t, "goodput over in order", *r.GoodputOverIdeal, 0.97)
			atMost(t, "spurious retransmissions", r.SpuriousShare, 0.001)
		},
		"incast32":         settled(1.1),
		"incast32-1bdp":    settled(1.1),
		"incast32-1bdp-4k": settled(1.1),
		"incast64":         settled(1.15),
		"software-loss10":  ideal(0.60),
		"hardware-loss5":   ideal(0.94),
		"hardware-loss10":  ideal(0.88),
		"pull-loss5":       ideal(0.85),
		"pull-loss10":      ideal(0.60),
		"tail-loss1":       ideal(0.85),
		"outage5rtt":       ideal(0.60),
		"long-loss1": func(t *testing.T, r *sim.Result) {
			atLeast(t, "goodput over a window per round trip", r.Goodput/windowPerRTT, 0.45)
		},
		"incast64-full": func(t *testing.T, r *sim.Result) {
			atLeast(t, "Jain index", r.Jain, 0.98)
			atLeast(t, "goodput over rate", r.GoodputOverRate, 0.85)
		},
		"incast256": func(t *testing.T, r *sim.Result) {
			atLeast(t, "Jain index", r.Jain, 0.98)
			atLeast(t, "goodput over rate", r.GoodputOverRate, 0.85)
		},
		"incast1023": func(t *testing.T, r *sim.Result) {
			atLeast(t, "Jain index", r.Jain, 0.95)
			atLeast(t, "goodput over rate", r.GoodputOverRate, 0.85)
		},
		"burst": ideal(0.85),
		"loss1pct-200g": func(t *testing.T, r *sim.Result) {
			atLeast(t, "goodput over lossless", *r.GoodputOverIdeal, 0.985)
			over := *r.GoodputOverIdeal / goBackN(0.01, 61)
			atLeast(t, "goodput over that of go-back-N", over, 1.4)
			atMost(t, "goodput over that of go-back-N", over, 1.8)
		},
		"writes-loss2":        recovers(0.97, 1.15),
		"writes-loss2-200g":   recovers(0.88, 3.4),
		"offered-incast5":     delivers,
		"offered-incast5x10":  delivers,
		"offered-incast5x100": delivers,
		"offered-any24": func(t *testing.T, r *sim.Result) {
			delivers(t, r)
			const alone = 5.2e3 + 20e3 // 128 KiB at 200 Gbit/s, and a round trip
			atMost(t, "completion of 99 %, ns", float64(r.Time99), 3*alone)
		},
		"asymmetric": func(t *testing.T, r *sim.Result) {
			atLeast(t, "goodput over the slower link", r.Goodput/10e9, 0.85)
		},
		"pull-mixed": func(t *testing.T, r *sim.Result) {
			atLeast(t, "goodput over lossless", *r.GoodputOverIdeal, 0.98)
			atMost(t, "spurious retransmissions", r.SpuriousShare, 0.005)
		},
	}
	files, err := filepath.Glob(filepath.Join(shipped, "*.yaml"))
	if err != nil || len(files) < len(promises) {
		t.Fatalf("scenarios: %v, %v", files, err)
	}
	for _, f := range files {
		s, err := scenario.Load(f)
		if err != nil {
			t.Error(err)
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			seeds := uint64(2)
			if testing.Short() || promises[s.Name] == nil || len(s.Flows) > 64 { // many flows are many chances
				seeds = 1
			}
			if s.Network.RTT <= 10e3 && len(s.Flows) <= 64 && s.Flows[0].Rate == 0 { // less has enough round trips, and packets of each flow
				s.Duration, s.WarmUp = min(s.Duration, 25e6), min(s.WarmUp, 15e6)
			}
			for seed := uint64(1); seed <= seeds; seed++ {
				r, err := sim.Run(s, seed)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("seed %d: %.2f Gbit/s, Jain %.4f, %d retransmitted, %d spurious, %d lost, delay %.2f of target, 99 %% within %.1f µs",
					seed, r.Goodput/1e9, r.Jain, r.Retransmissions, r.Spurious, r.Lost, r.DelayOverTarget, float64(r.Time99)/1e3)
				if check := promises[s.Name]; check != nil {
					check(t, r)
					if r.Failed != 0 {
						t.Errorf("%d operations failed", r.Failed)
					}
				}
			}
		})
	}
}

// windowPerRTT is what 256 packets of 4 KiB per millisecond carry, bits per second.
const windowPerRTT = 256 * 4096 * 8 * 1e3

// ideal is what a scenario with lossy links promises: a share of the goodput without loss.
func ideal(share float64) func(*testing.T, *sim.Result) {
	return func(t *testing.T, r *sim.Result) {
		t.Helper()
		atLeast(t, "goodput over lossless", *r.GoodputOverIdeal, share)
	}
}

// goBackN is the share of the goodput without loss that a sender gets which sends everything from a
// lost packet on again, and learns of each loss after a round trip of so many packets, without ever
// waiting for a timer.
func goBackN(loss, trip float64) float64 { return (1 - loss) / (1 + loss*trip) }

// recovers is what ideal promises, with few packets sent again for each that was lost.
func recovers(share, again float64) func(*testing.T, *sim.Result) {
	return func(t *testing.T, r *sim.Result) {
		t.Helper()
		ideal(share)(t, r)
		atMost(t, "sent again for each lost", float64(r.Retransmissions)/float64(r.Lost), again)
	}
}

// delivers is what flows with a rate promise when there is room for them.
func delivers(t *testing.T, r *sim.Result) {
	t.Helper()
	atLeast(t, "delivered of what was offered", r.Goodput/r.Offered, 0.99)
	atLeast(t, "Jain index", r.Jain, 0.99)
	atMost(t, "lost", float64(r.Lost+r.QueueDrops), 0)
}

// settled is what an incast promises after it converged.
func settled(delay float64) func(*testing.T, *sim.Result) {
	return func(t *testing.T, r *sim.Result) {
		t.Helper()
		atLeast(t, "Jain index", r.Jain, 0.98)
		atMost(t, "loss", r.LossShare, 0)
		atLeast(t, "delay over target", r.DelayOverTarget, 0.9)
		atMost(t, "delay over target", r.DelayOverTarget, delay)
		atLeast(t, "goodput over rate", r.GoodputOverRate, 0.85)
	}
}

func atLeast(t *testing.T, what string, got, want float64) {
	t.Helper()
	if !(got >= want) {
		t.Errorf("%s: %v, want at least %v", what, got, want)
	}
}

func atMost(t *testing.T, what string, got, want float64) {
	t.Helper()
	if !(got <= want) {
		t.Errorf("%s: %v, want at most %v", what, got, want)
	}
}

// TestEqualSeedsGiveEqualResults: a result is a function of scenario and seed.
func TestEqualSeedsGiveEqualResults(t *testing.T) {
	s := load(t, "pull-mixed")
	s.Duration, s.WarmUp = 5e6, 0
	a, err := sim.Run(s, 7)
	if err != nil {
		t.Fatal(err)
	}
	b, err := sim.Run(s, 7)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(a, b) {
		t.Error("equal seeds gave different results")
	}
	c, err := sim.Run(s, 8)
	if err != nil {
		t.Fatal(err)
	}
	if reflect.DeepEqual(a.Series, c.Series) {
		t.Error("different seeds gave equal results")
	}
}

package shard

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestShadowVirtual lets a driver that rings only when asked post at the worst moments of virtual
// time, over a bad wire: after a shard's last poll of its rings and before it sleeps. No request is
// left behind (DRV-604, DEV-607).
func TestShadowVirtual(t *testing.T) {
	for seed := range uint64(10) {
		v := newVirtual(t, seed, sim.Impairment{Delay: 30_000, Jitter: 20_000, Loss: 0.02})
		a, b := newDriver(v, 0, 1), newDriver(v, 1, 1)
		a.b.Features = abi.FeatureEventIndex
		a.setUp()
		b.setUp()
		a.connectTo(b, 99)
		r := rand.New(rand.NewPCG(seed, 1))
		const total = 400
		posted, done := 0, 0
		post := func(n int) {
			for range n {
				if posted < total && posted-done < 1<<sqLog2 {
					a.send(abi.OpWrite, 0, 1+r.IntN(5000), b, 0)
					posted++
				}
			}
		}
		v.gap = func(side int) {
			if side == 0 && r.IntN(2) == 0 {
				post(r.IntN(4))
			}
		}
		v.until(fmt.Sprintf("seed %d: all completions", seed), func() bool {
			for {
				cqe, ok := a.completion()
				if !ok {
					break
				}
				if cqe.Status != abi.WCSuccess {
					t.Fatal(cqe.Status)
				}
				done++
			}
			if done == posted { // else a later request would wake the device for a lost one
				post(1 + r.IntN(3))
				v.step()
			}
			return done == total
		})
		if a.rung == 0 || a.rung > total*9/10 {
			t.Errorf("seed %d: %d doorbells for %d requests", seed, a.rung, total)
		}
	}
}

// TestBusyDriverRingsNoBell checks that requests that the shard finds by polling need no record,
// and that the driver rings a shard that no longer polls.
func TestBusyDriverRingsNoBell(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := newDriver(v, 0, 1), newDriver(v, 1, 1)
	a.b.Features = abi.FeatureEventIndex
	a.setUp()
	b.setUp()
	a.connectTo(b, 99)
	a.send(abi.OpWrite, 0, 64, b, 0)
	if a.rung != 1 {
		t.Fatal("an idle device was not rung for")
	}
	s := v.shards[0]
	step := func() bool {
		in := thread.Input{}
		s.Step(v.now, &in, v.out(s))
		v.out(s).Do()
		return v.out(s).Polled
	}
	step()
	for i := range 20 {
		a.send(abi.OpWrite, 0, 64, b, 0)
		if !step() {
			t.Fatalf("request %d not found", i)
		}
	}
	if a.rung != 1 {
		t.Errorf("%d doorbells for a device that was looking", a.rung-1)
	}
	for range 21 {
		if cqe := a.done(); cqe.Status != abi.WCSuccess {
			t.Fatal(cqe.Status)
		}
	}
	a.send(abi.OpWrite, 0, 64, b, 0)
	if a.rung != 2 {
		t.Error("a device that went to sleep was not rung for")
	}
}

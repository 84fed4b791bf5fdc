package shard

import (
	"bytes"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
)

var wire100us = sim.Impairment{Delay: 50_000}

// TestVirtualPair moves data between two functions in virtual time: of two NICs, and of one, on one
// shard or two.
func TestVirtualPair(t *testing.T) {
	eachShards(t, func(t *testing.T) {
		eachDistance(t, func(t *testing.T) {
			v := newVirtual(t, 1, wire100us)
			a, b := pair(v)
			exchange(t, a, b, 300_000)
		})
	})
}

// exchange does a WRITE, a READ back and a SEND of n bytes.
func exchange(t *testing.T, a, b *driver, n int) {
	t.Helper()
	src, dst := a.data(), b.data()
	for i := range n {
		src[i] = byte(i*13 + i>>9)
	}
	success := func(d *driver, what string) {
		t.Helper()
		if cqe := d.done(); cqe.Status != abi.WCSuccess {
			t.Fatalf("%s: %s", what, cqe.Status)
		}
	}
	a.send(abi.OpWrite, 0, n, b, 5)
	success(a, "WRITE")
	if !bytes.Equal(dst[5:5+n], src[:n]) {
		t.Fatal("WRITE: data differs")
	}
	a.send(abi.OpRead, 1<<20, n, b, 5)
	success(a, "READ")
	if !bytes.Equal(src[1<<20:1<<20+n], src[:n]) {
		t.Fatal("READ: data differs")
	}
	clear(dst[:n])
	b.receive(0, n)
	a.send(abi.OpSend, 0, n, b, 0)
	success(a, "SEND")
	success(b, "receive")
	if !bytes.Equal(dst[:n], src[:n]) {
		t.Fatal("SEND: data differs")
	}
}

// TestReplay runs the same seed twice over a bad wire and checks for the same frames at the same
// times, byte for byte, and for other frames with other seeds.
func TestReplay(t *testing.T) { eachShards(t, testReplay) }

func testReplay(t *testing.T) {
	bad := sim.Impairment{Delay: 30_000, Jitter: 20_000, Loss: 0.03, Duplicate: 0.02, Reorder: 0.05, ReorderDelay: 100_000, Corrupt: 0.05}
	run := func(seed uint64) uint64 {
		v := newVirtual(t, seed, bad)
		a, b := pair(v)
		exchange(t, a, b, 200_000)
		if v.dropped(0, dropPSPAuth)+v.dropped(1, dropPSPAuth) == 0 {
			t.Error("the wire corrupted frames and none failed authentication")
		}
		return v.trace.Sum64()
	}
	seen := map[uint64]bool{}
	for seed := uint64(1); seed <= 3; seed++ {
		first, second := run(seed), run(seed)
		if first != second {
			t.Errorf("seed %d: traces %x and %x differ", seed, first, second)
		}
		if seen[first] {
			t.Errorf("seed %d: same trace as another seed", seed)
		}
		seen[first] = true
	}
}

// TestNoAllocations checks that once a connection works, packets allocate nothing, in either
// direction: doorbell, rings, Falcon, sealing, opening, completion.
func TestNoAllocations(t *testing.T) { eachShards(t, testNoAllocationsOf) }

func testNoAllocationsOf(t *testing.T) {
	for name, features := range map[string]uint64{"records": 0, "event index": abi.FeatureEventIndex} {
		t.Run(name+" singly", func(t *testing.T) { testNoAllocations(t, features, nil, false) })
		t.Run(name+" superframes", func(t *testing.T) { testNoAllocations(t, features, &joiner{}, false) })
		t.Run(name+" traced", func(t *testing.T) { testNoAllocations(t, features, nil, true) })
	}
}

func testNoAllocations(t *testing.T, features uint64, super *joiner, traced bool) {
	v := newVirtual(t, 1, wire100us)
	v.tell, v.super = false, super
	a, b := newDriver(v, 0, 1), newDriver(v, 1, 1)
	a.b.Features, b.b.Features = features, features
	a.setUp()
	b.setUp()
	a.connectTo(b, 99)
	for _, d := range []*driver{a, b} {
		if traced {
			if _, err := d.fn.set.startTrace(d.fn.ID, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	work := func(op abi.Opcode, n int) func() {
		return func() {
			a.send(op, 0, n, b, 0)
			for {
				if cqe, ok := a.completion(); ok {
					if cqe.Status != abi.WCSuccess {
						t.Fatal(cqe.Status)
					}
					break
				}
				v.step()
				if !v.advance(v.now + 1e9) {
					t.Fatal("no completion")
				}
			}
			a.collect()
			b.collect()
		}
	}
	for _, op := range []abi.Opcode{abi.OpWrite, abi.OpRead} {
		f := work(op, 64<<10)
		for range 200 { // tables and pools reach their size
			f()
		}
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s of 64 KiB: %v allocations, want none", op, n)
		}
	}
}

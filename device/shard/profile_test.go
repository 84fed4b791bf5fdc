package shard

import (
	"testing"

	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestHeldBeforeDestroyed checks that completions that a profile holds back come before the answer
// to the command that destroys their queue pair.
func TestHeldBeforeDestroyed(t *testing.T) {
	held := uint64(0)
	for seed := range uint64(10) {
		v := newVirtual(t, 40+seed, wire100us)
		a, b := pair(v)
		if err := a.fn.Faults.UseProfile(guest.HostileProfile, seed+1); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			a.send(abi.OpWrite, 0, 64, b, 0)
		}
		end := v.now + 350e3
		v.until("the writes", func() bool { return v.now >= end })
		a.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: a.qpn})
		for _, ok := a.completion(); ok; _, ok = a.completion() {
		}
		_, _, did := a.fn.Faults.Profile()
		held += did.Holds
		v.idle(1e9)
		if c, ok := a.completion(); ok {
			t.Errorf("seed %d: a completion of a queue pair that is gone: %+v", seed, c)
		}
	}
	if held == 0 {
		t.Error("nothing was held back: the test tests nothing")
	}
}

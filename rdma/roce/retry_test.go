package roce_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// TestSlowerPeer: a peer that suddenly takes longer than the pause before a retry is asked twice a
// few times, until its round trip was measured, and not ever after.
func TestSlowerPeer(t *testing.T) {
	w := newWorld(1, false, 1500, sim.Impairment{Delay: 1e6})
	from, to := w.connect(0), w.connect(1)
	attachMTU(t, from, &target{serving: true}, 17, 18, 1024)
	attachMTU(t, to, &sink{}, 18, 17, 1024)
	now := transport.Time(1e9)
	write := func() {
		t.Helper()
		r := transport.Request{Length: 100, WQE: abi.SendWQE{Opcode: abi.OpWrite, RKey: 7}}
		if _, err := from.Issue(now, &r); err != nil {
			t.Fatal(err)
		}
		for w.step(now); r.Pending > 0; w.step(now) {
			now = min(w.engines[0].Deadline(), w.engines[1].Deadline(), w.links[0].Deadline(), w.links[1].Deadline())
		}
		if r.Status != abi.WCSuccess {
			t.Fatal(r.Status)
		}
		now += 1e6
	}
	for range 100 {
		write()
	}
	if s := w.ports[0].Stats(); s.Timeouts != 0 {
		t.Fatalf("%d timeouts at 2 ms", s.Timeouts)
	}
	for i := range w.links {
		w.links[i] = sim.NewLink(uint64(i), sim.Impairment{Delay: 12e6})
	}
	for range 100 {
		write()
	}
	if s := w.ports[0].Stats(); s.Timeouts == 0 || s.Timeouts > 5 {
		t.Errorf("%d timeouts at 24 ms, want some at the beginning", s.Timeouts)
	}
}

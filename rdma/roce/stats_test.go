package roce_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// TestStatsAreTrue: what the ports count is what was on the wire: packets each way, requests that
// were sent again, marks and the notifications that follow them.
func TestStatsAreTrue(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		w := newWorld(3, v6, 1500, sim.Impairment{Delay: 20e3, Loss: 0.02})
		from, to := w.connect(0), w.connect(1)
		attach(t, from, &target{serving: true}, 17, 18)
		attach(t, to, &sink{}, 18, 17)
		var sent, marked, cnps [2]uint64
		again, seen := uint64(0), map[wire.PSN]bool{}
		w.sees = func(i int, packet []byte) {
			sent[i]++
			var h wire.Headers
			_, part, err := wire.Parse(packet)
			if err == nil {
				_, err = h.Parse(part)
			}
			switch {
			case err != nil:
				t.Error(err)
			case h.BTH.Opcode == wire.CNP:
				cnps[i]++
			case i == 0 && seen[h.BTH.PSN]:
				again++
			case i == 0:
				seen[h.BTH.PSN] = true
			}
			if i == 0 && sent[0]%40 == 0 {
				mark(packet)
				marked[0]++
			}
		}
		now := transport.Time(1e9)
		for range 50 {
			r := transport.Request{Length: 4096, WQE: abi.SendWQE{Opcode: abi.OpWrite, RKey: 7}}
			for !r.Issued || r.Pending > 0 {
				if !r.Issued {
					if _, err := from.Issue(now, &r); err != nil {
						t.Fatal(err)
					}
				}
				if next := w.step(now); !r.Issued || r.Pending > 0 {
					now = max(now+1, next)
				}
			}
			if r.Status != abi.WCSuccess {
				t.Fatal(r.Status)
			}
		}
		for range 100 { // what is under way
			now += 1e6
			w.step(now)
		}
		var sum transport.PortStats
		for i, p := range w.ports {
			s := p.Stats()
			sum.Add(&s)
			if lost := w.links[1-i].Stats().Lost; s.Sent != sent[i] || s.Received != sent[1-i]-lost || s.Wrong+s.Strange+s.Refused != 0 {
				t.Errorf("port %d: %+v; on the wire %d and %d, %d of them lost", i, s, sent[i], sent[1-i], lost)
			}
		}
		if a, b := w.ports[0].Stats(), w.ports[1].Stats(); a.Again != again || again == 0 || a.Missing+a.Timeouts == 0 || b.Again != 0 {
			t.Errorf("%d requests sent again, counted %+v and %+v", again, a, b)
		}
		a, b := w.ports[0].Stats(), w.ports[1].Stats()
		if b.CNPsSent != cnps[1] || cnps[1] == 0 || a.CNPs == 0 || a.CNPs > cnps[1] || a.CNPsSent+b.CNPs+a.Marked != 0 || b.Marked == 0 || b.Marked > marked[0] {
			t.Errorf("%d marked, %d notifications, counted %+v and %+v", marked[0], cnps[1], a, b)
		}
		if want := (transport.PortStats{
			Received: a.Received + b.Received, Sent: a.Sent + b.Sent, Again: a.Again, Timeouts: a.Timeouts, Missing: a.Missing, Marked: b.Marked, CNPs: a.CNPs, CNPsSent: b.CNPsSent,
		}); sum != want {
			t.Errorf("sum %+v, want %+v", sum, want)
		}
	}
}

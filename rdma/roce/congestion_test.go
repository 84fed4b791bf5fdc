package roce_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/cc"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// through writes megabytes through a bottleneck of 100 Mbit/s whose queue holds 40 packets, and
// which marks packets behind more than 8 others if it marks at all. It returns how many bytes per
// second arrived, how many packets were lost, and the longest the queue was in the second half.
func through(t *testing.T, algorithm string, marks bool, megabytes int) (rate float64, lost uint64, queue int) {
	t.Helper()
	const bits = 100e6
	w := newWorld(3, false, 1500, sim.Impairment{Delay: 100e3, Rate: bits, Queue: 40})
	a, _ := cc.Lookup(algorithm)
	for _, e := range w.engines {
		e.UseCongestion(a)
	}
	from, to := w.connect(0), w.connect(1)
	attachMTU(t, from, &target{serving: true}, 17, 18, 1024)
	attachMTU(t, to, &sink{}, 18, 17, 1024)
	count := megabytes << 20 / (64 << 10)
	begun, over := 0, 0
	w.sees = func(i int, packet []byte) {
		n := w.links[i].InFlight()
		if marks && n > 8 {
			mark(packet)
		}
		if i == 0 && over > count/2 {
			queue = max(queue, n)
		}
	}
	now := transport.Time(1e9)
	requests := make([]transport.Request, count)
	for over < count {
		for over < count && requests[over].Issued && requests[over].Pending == 0 {
			if st := requests[over].Status; st != abi.WCSuccess {
				t.Fatal(st)
			}
			over++
		}
		for begun < count {
			r := &requests[begun]
			r.Length, r.WQE = 64<<10, abi.SendWQE{Opcode: abi.OpWrite, RKey: 7}
			if _, err := from.Issue(now, r); err != nil {
				break
			}
			if r.Issued {
				begun++
			}
		}
		if next := max(now+1, w.step(now)); requests[count-1].Pending > 0 || !requests[count-1].Issued {
			if now = next; now > 100e9 {
				t.Fatalf("%d of %d after a hundred seconds", over, count)
			}
		}
	}
	return float64(megabytes<<20) * 1e9 / float64(now-1e9), w.links[0].Stats().Overflowed, queue
}

// TestBottleneck fills a bottleneck. With notifications DCQCN keeps its queue short and loses
// nothing once it knows the rate; without them, as with rdma_rxe, the window follows the losses.
func TestBottleneck(t *testing.T) {
	const line = 100e6 / 8
	for _, c := range []struct {
		algorithm string
		marks     bool
		least     float64
		queue     int // at most, where the marks say so
	}{
		{"dcqcn", true, 0.6, 30},
		{"dcqcn", false, 0.6, 40},
		{"window", true, 0.6, 30},
		{"window", false, 0.6, 40},
	} {
		rate, lost, queue := through(t, c.algorithm, c.marks, 16)
		t.Logf("%s, marks %t: %.0f %% of the line, %d packets lost, queue of %d at most", c.algorithm, c.marks, rate/line*100, lost, queue)
		if rate < c.least*line || queue > c.queue {
			t.Errorf("%s, marks %t: %.0f %% of the line, queue of %d", c.algorithm, c.marks, rate/line*100, queue)
		}
	}
}

// sink takes WRITEs and looks at nothing.
type sink struct{ target }

func (*sink) Serving() bool { return true }

func (*sink) Place(transport.Time, *transport.Packet, []byte) transport.Verdict {
	return transport.Verdict{}
}

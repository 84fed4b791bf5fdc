package roce_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/cc"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// bottleneck is a line whose queue holds 40 packets, and which marks packets behind more than marks
// others, if it marks at all.
type bottleneck struct {
	bits  int64 // per second
	delay transport.Time
	marks int
}

// through writes megabytes through a bottleneck. It returns how many bytes per second arrived, how
// many packets were lost, and the longest the queue was in the second half.
func through(t *testing.T, algorithm string, n bottleneck, megabytes int) (rate float64, lost uint64, queue int) {
	t.Helper()
	w := newWorld(3, false, 1500, sim.Impairment{Delay: n.delay, Rate: n.bits, Queue: 40})
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
		behind := w.links[i].InFlight()
		if n.marks > 0 && behind > n.marks {
			mark(packet)
		}
		if i == 0 && over > count/2 {
			queue = max(queue, behind)
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

// TestABottleneckIsFilledWithAShortQueue fills a bottleneck. With notifications DCQCN keeps its queue short, of lines and
// round trips of any kind, and loses nothing; without them, as with rdma_rxe, the window follows
// the losses.
func TestABottleneckIsFilledWithAShortQueue(t *testing.T) {
	for _, c := range []struct {
		algorithm string
		bottleneck
		least float64
		queue int // at most
		lost  uint64
	}{
		{"dcqcn", bottleneck{100e6, 10e3, 8}, 0.85, 20, 0},
		{"dcqcn", bottleneck{100e6, 100e3, 8}, 0.85, 20, 0},
		{"dcqcn", bottleneck{100e6, 1e6, 20}, 0.8, 35, 0}, // 11 packets are under way on the line
		{"dcqcn", bottleneck{1e9, 10e3, 8}, 0.85, 20, 0},
		{"dcqcn", bottleneck{1e9, 100e3, 20}, 0.85, 35, 0},
		{"dcqcn", bottleneck{100e6, 100e3, 0}, 0.8, 40, 450},
		{"window", bottleneck{100e6, 100e3, 8}, 0.85, 20, 0},
		{"window", bottleneck{100e6, 100e3, 0}, 0.8, 40, 450},
	} {
		rate, lost, queue := through(t, c.algorithm, c.bottleneck, int(c.bits/1e6*16/100))
		share := rate * 8 / float64(c.bits)
		t.Logf("%s, %+v: %.0f %% of the line, %d packets lost, queue of %d at most", c.algorithm, c.bottleneck, share*100, lost, queue)
		if share < c.least || queue > c.queue || lost > c.lost {
			t.Errorf("%s, %+v: %.0f %% of the line, queue of %d, %d lost", c.algorithm, c.bottleneck, share*100, queue, lost)
		}
	}
}

// sink takes WRITEs and looks at nothing.
type sink struct{ target }

func (*sink) Serving() bool { return true }

func (*sink) Place(transport.Time, *transport.Packet, []byte) transport.Verdict {
	return transport.Verdict{}
}

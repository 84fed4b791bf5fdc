package sim_test

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/sim"
)

type arrival struct {
	at   falcon.Time
	data string
	ce   bool
}

// flow sends n frames of 100 bytes, one every gap, and returns what arrives.
func flow(l *sim.Link, n int, gap falcon.Time) (out []arrival) {
	recv := func(now falcon.Time) {
		for {
			f, ok := l.Receive(now)
			if !ok {
				return
			}
			out = append(out, arrival{now, string(f.Data), f.CE})
		}
	}
	now := falcon.Time(0)
	for i := range n {
		for at := l.Deadline(); at <= now; at = l.Deadline() {
			recv(at)
		}
		b := bytes.Repeat([]byte{byte(i)}, 100)
		b[1] = byte(i >> 8)
		l.Send(now, b)
		now += gap
	}
	for at := l.Deadline(); at != math.MaxInt64; at = l.Deadline() {
		recv(at)
	}
	return out
}

func TestALinkDecidesAlikeForTheSameSeed(t *testing.T) {
	imp := sim.Impairment{Loss: 0.1, Duplicate: 0.1, Reorder: 0.1, ReorderDelay: 50, Corrupt: 0.1, Mark: 0.1, Delay: 10, Jitter: 20}
	a, b := flow(sim.NewLink(7, imp), 500, 5), flow(sim.NewLink(7, imp), 500, 5)
	if !slices.Equal(a, b) {
		t.Error("equal seeds gave different runs")
	}
	if slices.Equal(a, flow(sim.NewLink(8, imp), 500, 5)) {
		t.Error("different seeds gave equal runs")
	}
	// Decisions depend on frames, not on times.
	s, f := sim.NewLink(7, imp), sim.NewLink(7, imp)
	flow(s, 500, 5)
	flow(f, 500, 100)
	if s.Stats() != f.Stats() {
		t.Errorf("another timing changed the decisions: %+v, %+v", s.Stats(), f.Stats())
	}
}

func TestALinkImpairsAsConfigured(t *testing.T) {
	const n = 4000
	share := func(what string, got uint64, want float64) {
		t.Helper()
		if p := float64(got) / n; math.Abs(p-want) > 0.03 {
			t.Errorf("%s: %.3f of the frames, want %.3f", what, p, want)
		}
	}
	l := sim.NewLink(1, sim.Impairment{Loss: 0.2})
	share("loss", uint64(n-len(flow(l, n, 10))), 0.2)
	share("loss counted", l.Stats().Lost, 0.2)
	share("duplicate", uint64(len(flow(sim.NewLink(2, sim.Impairment{Duplicate: 0.3}), n, 10))-n), 0.3)
	l = sim.NewLink(3, sim.Impairment{Corrupt: 0.25})
	bad := 0
	for i, f := range flow(l, n, 10) {
		want := bytes.Repeat([]byte{byte(i)}, 100)
		want[1] = byte(i >> 8)
		if f.data != string(want) {
			bad++
		}
	}
	share("corrupt", uint64(bad), 0.25)
	marked := 0
	for _, f := range flow(sim.NewLink(4, sim.Impairment{Mark: 0.4}), n, 10) {
		if f.ce {
			marked++
		}
	}
	share("mark", uint64(marked), 0.4)
	swapped := 0
	got := flow(sim.NewLink(5, sim.Impairment{Reorder: 0.1, ReorderDelay: 15}), n, 10)
	for i := 1; i < len(got); i++ {
		if int(got[i].data[0])|int(got[i].data[1])<<8 < int(got[i-1].data[0])|int(got[i-1].data[1])<<8 {
			swapped++
		}
	}
	share("reorder", uint64(swapped), 0.09)
	l = sim.NewLink(5, sim.Impairment{Reorder: 0.1, ReorderDelay: 15})
	flow(l, n, 10)
	share("reorder counted", l.Stats().Reordered, 0.1)
	if got := flow(sim.NewLink(6, sim.Impairment{Down: true}), n, 10); len(got) != 0 {
		t.Errorf("%d frames passed a link that is down", len(got))
	}
	got = flow(sim.NewLink(7, sim.Impairment{Delay: 1000, Jitter: 500}), n, 10)
	for _, f := range got {
		sent := falcon.Time(int(f.data[0])|int(f.data[1])<<8) * 10
		if d := f.at - sent; d < 1000 || d > 1500 {
			t.Fatalf("delay %d, want 1000 to 1500", d)
		}
	}
	got = flow(sim.NewLink(8, sim.Impairment{Rate: 8e9}), 100, 0) // 100 bytes take 100 ns
	if last := got[len(got)-1].at; last != 100*100 {
		t.Errorf("last of 100 frames at %d ns, want 10000", last)
	}
	l = sim.NewLink(9, sim.Impairment{Queue: 10, Delay: 100})
	if got := flow(l, 100, 0); len(got) != 10 || l.Stats().Overflowed != 90 {
		t.Errorf("%d frames passed a queue of 10, %d overflowed", len(got), l.Stats().Overflowed)
	}
}

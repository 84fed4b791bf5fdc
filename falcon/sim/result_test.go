package sim

import (
	"math"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cc"
)

func sum(list []float64) (s float64) {
	for _, v := range list {
		s += v
	}
	return s
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Max(math.Abs(a), math.Abs(b)) }

// TestResultAddsUp: sixteen flows fill a port with a small buffer. The samples after the warm-up
// agree with the result, and the result with the counters of flows and ports.
func TestResultAddsUp(t *testing.T) {
	s := small()
	s.Duration, s.WarmUp, s.Network.Buffer, s.Network.Mark = 20e6, 5e6, 2*maxFrame, maxFrame
	for range 3 {
		s.Flows = append(s.Flows, s.Flows...)
	}
	n, m := metered(t, &s)
	n.Run(m.begin + s.WarmUp)
	dropped, marked := n.Ports[2].Dropped, n.Ports[2].Marked
	n.Run(m.begin + s.Duration)
	r := m.result(&s, 1)

	if dropped, marked = n.Ports[2].Dropped-dropped, n.Ports[2].Marked-marked; r.QueueDrops == 0 || r.QueueDrops != dropped || r.Marked == 0 || r.Marked != marked {
		t.Errorf("%d dropped and %d marked, the port counted %d and %d", r.QueueDrops, r.Marked, dropped, marked)
	}
	if r.Lost == 0 || r.Lost > r.QueueDrops || r.Retransmissions < r.Lost {
		t.Errorf("%d packets lost of %d drops, %d sent again", r.Lost, r.QueueDrops, r.Retransmissions)
	}
	if sent := float64(r.Packets + r.Retransmissions); !near(r.LossShare, float64(r.Lost)/sent) || !near(r.SpuriousShare, float64(r.Spurious)/sent) {
		t.Errorf("shares %v and %v of %v packets", r.LossShare, r.SpuriousShare, sent)
	}

	if want := int(s.Duration / s.Sample); len(r.Series) != want {
		t.Fatalf("%d samples, want %d", len(r.Series), want)
	}
	var goodput, delay, target, all float64
	peak, after := 0, 0.0
	for i, v := range r.Series {
		if want := falcon.Time(i+1) * s.Sample; v.At != want {
			t.Fatalf("sample %d is at %d, want %d", i, v.At, want)
		}
		if v.CwndMin > v.Cwnd || v.Cwnd > v.CwndMax || v.CwndMin <= 0 {
			t.Errorf("sample %d: windows %v, %v, %v are not in order", i, v.CwndMin, v.Cwnd, v.CwndMax)
		}
		all += v.Goodput
		if v.At > s.WarmUp {
			goodput, delay, target, peak, after = goodput+v.Goodput, delay+v.Delay, target+v.Target, max(peak, v.Queue), after+1
		}
	}
	if r.Goodput == 0 || !near(r.Goodput, goodput/after) || !near(r.Goodput, sum(r.Flows)) {
		t.Errorf("goodput %v; samples say %v, flows %v", r.Goodput, goodput/after, r.Flows)
	}
	received := 0.0
	for _, f := range n.flows {
		received += float64(f.received)
	}
	if !near(all*float64(s.Sample), received*8e9) {
		t.Errorf("samples add up to %v bytes, flows received %v", all*float64(s.Sample)/8e9, received)
	}
	if !near(r.GoodputOverRate, r.Goodput/1e9) || r.GoodputOverRate > 1 {
		t.Errorf("%v of the rate at %v", r.GoodputOverRate, r.Goodput)
	}
	if r.QueuePeak != peak || peak == 0 || peak > s.Network.Buffer {
		t.Errorf("queue peak %d, samples say %d", r.QueuePeak, peak)
	}
	if !near(r.Delay, delay/after) || !near(r.Target, target/after) || !near(r.DelayOverTarget, delay/target) {
		t.Errorf("delay %v, target %v, ratio %v; samples say %v and %v", r.Delay, r.Target, r.DelayOverTarget, delay/after, target/after)
	}
}

// TestLinksWithTheSameFaultsLoseDifferentPackets: links with the same faults lose different packets, and the same ones each time.
func TestLinksWithTheSameFaultsLoseDifferentPackets(t *testing.T) {
	loses := func(seed uint64) (list [2][2]string) {
		lossy := LinkConfig{Faults: Faults{Loss: 0.5}}
		c := NetworkConfig{Hosts: 2, Rate: 1e9, Buffer: 1 << 20, Links: []HostLinks{{Count: 2, Up: lossy, Down: lossy}}}
		n, err := NewNetwork(seed, c, falcon.Config{Profile: falcon.Hardware()})
		if err != nil {
			t.Fatal(err)
		}
		for h := range list {
			for d, l := range []*line{n.Hosts[h].line, n.Ports[h].line} {
				for i := range 64 {
					list[h][d] += map[bool]string{true: "x", false: "."}[l.loses(uint64(i))]
				}
			}
		}
		return list
	}
	a := loses(1)
	seen := map[string]bool{}
	for _, host := range a {
		for _, pattern := range host {
			if seen[pattern] {
				t.Errorf("two links lose the same: %v", a)
			}
			seen[pattern] = true
		}
	}
	if b := loses(1); a != b {
		t.Errorf("another run under the seed loses %v, not %v", b, a)
	}
	if b := loses(2); a == b {
		t.Errorf("another seed loses the same: %v", b)
	}
}

// TestRetransmissionsAreCountedAsTheHostsCountThem: retransmissions after the warm-up are classified as the hosts count them.
func TestRetransmissionsAreCountedAsTheHostsCountThem(t *testing.T) {
	var early, timeouts uint64
	for _, loss := range []float64{0, 0.05} {
		s := small()
		s.Duration, s.WarmUp, s.Network.Faults.Loss = 20e6, 5e6, loss
		if loss == 0 { // by a port that is too small
			s.Network.Buffer = 2 * maxFrame
			for range 3 {
				s.Flows = append(s.Flows, s.Flows...)
			}
		} else {
			s.Profile = falcon.Software()
		}
		n, m := metered(t, &s)
		again := func() (early, timeouts uint64) {
			for _, h := range n.Hosts {
				s := h.Engine.Stats()
				early, timeouts = early+s.EarlyRetransmits, timeouts+s.TimeoutRetransmits
			}
			return early, timeouts
		}
		n.Run(m.begin + s.WarmUp)
		e, o := again()
		n.Run(m.begin + s.Duration)
		r := m.result(&s, 1)
		e2, o2 := again()
		if r.Early != e2-e || r.Timeouts != o2-o {
			t.Errorf("%d sent again early and %d after a timeout, the hosts say %d and %d", r.Early, r.Timeouts, e2-e, o2-o)
		}
		early, timeouts = early+r.Early, timeouts+r.Timeouts
	}
	if early == 0 || timeouts == 0 {
		t.Errorf("%d early, %d after a timeout: nothing was tried", early, timeouts)
	}
}

// TestFailuresDuringTheWarmUpDoNotCount: operations that fail before the end of the warm-up are not in the result.
func TestFailuresDuringTheWarmUpDoNotCount(t *testing.T) {
	s := small()
	n, m := metered(t, &s)
	n.flows[0].failed = 3
	n.Run(m.begin + s.WarmUp + s.Sample)
	n.flows[0].failed += 4
	n.flows[1].failed++
	n.Run(m.begin + s.Duration)
	if r := m.result(&s, 1); r.Failed != 5 {
		t.Errorf("%d operations failed, want 5", r.Failed)
	}
}

// TestComparedWithPerfectLinks: a scenario with faults, of the network or of one link and
// direction, is compared with itself without them, and one without is not.
func TestComparedWithPerfectLinks(t *testing.T) {
	lossy := LinkConfig{Faults: Faults{Loss: 0.05}}
	for name, c := range map[string]struct {
		change func(*NetworkConfig)
		want   bool
	}{
		"perfect":       {func(*NetworkConfig) {}, false},
		"perfect links": {func(c *NetworkConfig) { c.Links = []HostLinks{{Host: 1, Count: 1, Up: LinkConfig{Rate: 1e9}}} }, false},
		"network":       {func(c *NetworkConfig) { c.Faults = lossy.Faults }, true},
		"up":            {func(c *NetworkConfig) { c.Links = []HostLinks{{Host: 1, Count: 1, Up: lossy}} }, true},
		"down":          {func(c *NetworkConfig) { c.Links = []HostLinks{{Host: 2, Count: 1, Down: lossy}} }, true},
	} {
		s := small()
		c.change(&s.Network)
		r, err := Run(&s, 1)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.GoodputOverIdeal != nil; got != c.want {
			t.Errorf("%s: compared: %v", name, got)
		} else if got && (*r.GoodputOverIdeal <= 0.1 || *r.GoodputOverIdeal >= 1) {
			t.Errorf("%s: %v of the goodput without faults", name, *r.GoodputOverIdeal)
		}
	}
}

// metered is a scenario's network with its flows, and what measures it.
func metered(t *testing.T, s *Scenario) (*Network, *meter) {
	t.Helper()
	n, err := NewNetwork(1, s.Network, falcon.Config{Profile: s.Profile})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range s.Flows {
		if err := n.AddFlow(f); err != nil {
			t.Fatal(err)
		}
	}
	return n, newMeter(n, s)
}

// known is congestion control whose delay and target the test sets.
type known struct{ cc.Fixed }

func (k known) Init(s *cc.State) { k.Fixed.Init(s); s.Delay = 100 }

func (k known) Update(*cc.State, *cc.Event) cc.Result { return cc.Result{} }

func (k known) Target(fcwnd float64, hops uint8) uint32 { return uint32(fcwnd*10) + uint32(hops) }

// TestDelaysAreMeansOfTheFlows: delay and target of samples and of the result are means of the
// flows', in nanoseconds.
func TestDelaysAreMeansOfTheFlows(t *testing.T) {
	s := small()
	s.Profile.CC = known{cc.Fixed{Fcwnd: 20 * cc.One, Ncwnd: 64, RTO: 7629}}
	r, err := Run(&s, 1)
	if err != nil {
		t.Fatal(err)
	}
	const delay, target = 13107, 26345 // 100 and 201 units of 131.072 ns
	for _, v := range r.Series {
		if v.Delay != delay || v.Target != target {
			t.Fatalf("delay %v, target %v, want %d and %d", v.Delay, v.Target, delay, target)
		}
	}
	if !near(r.Delay, delay) || !near(r.Target, target) || !near(r.DelayOverTarget, float64(delay)/target) {
		t.Errorf("delay %v, target %v, ratio %v", r.Delay, r.Target, r.DelayOverTarget)
	}
}

// TestWhatWasCountedBeforeTheWarmUpEndedIsNotInTheResult: what ports and flows counted before the
// end of the warm-up is not in the result.
func TestWhatWasCountedBeforeTheWarmUpEndedIsNotInTheResult(t *testing.T) {
	s := small()
	for i := range s.Flows {
		s.Flows[i].Start = 1e9
	}
	n, m := metered(t, &s)
	count := func(times uint64) {
		n.Ports[1].Dropped += 2 * times
		n.Ports[2].Marked += 3 * times
		n.flows[0].from.history.tally.add(tally{first: 10 * times, again: 2 * times, spurious: times})
		n.flows[1].to.history.tally.add(tally{first: 20 * times, lost: 8 * times})
	}
	count(100)
	n.Run(m.begin + s.WarmUp + s.Sample)
	count(1)
	n.Run(m.begin + s.Duration)
	r := m.result(&s, 1)
	if r.QueueDrops != 2 || r.Marked != 3 || r.Packets != 30 || r.Retransmissions != 2 || r.Spurious != 1 || r.Lost != 8 {
		t.Errorf("%+v", r)
	}
	if !near(r.SpuriousShare, 1.0/32) || !near(r.LossShare, 8.0/32) {
		t.Errorf("%v spurious, %v lost", r.SpuriousShare, r.LossShare)
	}
}

// TestAScenarioInWhichNothingHappensHasAResult: the result of a scenario in which nothing happens
// after the warm-up, and no sample is taken, contains no NaN or infinity.
func TestAScenarioInWhichNothingHappensHasAResult(t *testing.T) {
	s := small()
	s.WarmUp, s.Profile.CC = s.Duration-1, cc.Fixed{Fcwnd: 32 * cc.One, Ncwnd: 64, RTO: 7629}
	s.Network.Faults.Duplicate = 0.1
	for i := range s.Flows {
		s.Flows[i].Start = 1e9
	}
	r, err := Run(&s, 1)
	if err != nil {
		t.Fatal(err)
	}
	for what, v := range map[string]float64{
		"goodput": r.Goodput, "of the rate": r.GoodputOverRate, "fairness": r.Jain, "spurious": r.SpuriousShare, "lost": r.LossShare,
		"delay": r.Delay, "target": r.Target, "delay over target": r.DelayOverTarget,
	} {
		if v != 0 {
			t.Errorf("%s: %v", what, v)
		}
	}
	if r.GoodputOverIdeal != nil {
		t.Errorf("%v of the ideal, which is nothing", *r.GoodputOverIdeal)
	}
}

// TestTheSmallestWindowIsThatOfOneFlow: the smallest window of a sample is that of one flow, also
// if there is but one.
func TestTheSmallestWindowIsThatOfOneFlow(t *testing.T) {
	s := small()
	s.Flows, s.Profile.CC = s.Flows[:1], cc.Fixed{Fcwnd: 7 * cc.One, Ncwnd: 64, RTO: 7629}
	r, err := Run(&s, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range r.Series {
		if v.CwndMin != 7 || v.Cwnd != 7 || v.CwndMax != 7 {
			t.Fatalf("windows of %v, %v and %v packets, want 7", v.CwndMin, v.Cwnd, v.CwndMax)
		}
	}
}

package sim

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestMix: Mix is the generator splitmix64 of Steele, Lea and Flood, whose state is the argument.
// These are its first numbers from state 0 on.
func TestMix(t *testing.T) {
	state := uint64(0)
	for _, want := range []uint64{0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f} {
		if got := Mix(state); got != want {
			t.Errorf("%#x, want %#x", got, want)
		}
		state += 0x9e3779b97f4a7c15
	}
}

// TestEventsInOrder: events happen in the order of their times, and those of one time in the order
// in which they were scheduled.
func TestEventsInOrder(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	var e events
	var waiting []event
	for range 5000 {
		if rnd.IntN(5) > 1 {
			at := falcon.Time(rnd.IntN(20))
			e.at(at, timerDue, len(waiting), nil)
			waiting = append(waiting, event{at: at, order: e.order})
			continue
		}
		if len(waiting) == 0 {
			continue
		}
		next := 0
		for i, v := range waiting {
			if v.at < waiting[next].at || v.at == waiting[next].at && v.order < waiting[next].order {
				next = i
			}
		}
		want := waiting[next]
		if e.due(want.at-1) || !e.due(want.at) {
			t.Fatalf("an event of %d: due before %v, due %v", want.at, e.due(want.at-1), e.due(want.at))
		}
		if got := e.pop(); got.at != want.at || got.order != want.order {
			t.Fatalf("event %d of %d, want %d of %d", got.order, got.at, want.order, want.at)
		}
		waiting = slices.Delete(waiting, next, next+1)
	}
	if e = (events{}); e.due(math.MaxInt64) {
		t.Error("nothing is due")
	}
}

// TestOutageBorders: the outage is the end of each period, from its first nanosecond to its last.
func TestOutageBorders(t *testing.T) {
	n := network(t, func(c *NetworkConfig) { c.Outage, c.OutageEvery = 200, 1000 })
	l := n.Hosts[0].line
	for at, lost := range map[int64]bool{0: false, 799: false, 800: true, 999: true, 1000: false, 1799: false, 1800: true, 1999: true, 2000: false} {
		l.busy = at * picos
		if got := l.loses(0); got != lost {
			t.Errorf("at %d ns: lost %v", at, got)
		}
	}
}

// TestPerfectLine: a line without faults loses, repeats and reorders nothing.
func TestPerfectLine(t *testing.T) {
	got := pass(t, 5000, func(*NetworkConfig) {})
	for i, psn := range got {
		if psn != uint32(i) {
			t.Fatalf("frame %d arrives as number %d", psn, i)
		}
	}
	if len(got) != 5000 {
		t.Errorf("%d of 5000 frames arrive", len(got))
	}
}

// TestHeldFrameGoesAlone: a frame that is held back, and that no other follows, is sent after a
// round trip without traffic on the line, or after a microsecond if that is more.
func TestHeldFrameGoesAlone(t *testing.T) {
	for _, rtt := range []falcon.Time{10000, 100} {
		for _, other := range []falcon.Time{0, 600} { // another frame goes that much later, and is held too
			n := network(t, func(c *NetworkConfig) { c.Reorder, c.ReorderBy, c.RTT = 1, 64, rtt })
			f := add(t, n, FlowConfig{From: 0, To: 1, Sizes: []int{8}, Start: 1e9})
			l := n.Hosts[0].line
			send := func(psn uint32) {
				l.occupy(1250) // 100 ns
				l.send(frame(n, f, 1250, psn))
			}
			start := n.Now
			send(1)
			if len(l.held) != 1 {
				t.Skip("not held for long enough under this seed")
			}
			if other > 0 {
				n.Now += other
				send(2)
			}
			var at []falcon.Time
			for len(at) < 1+int(min(other, 1)) && len(n.events.heap) > 0 {
				ev := n.events.pop()
				n.Now = max(n.Now, ev.at)
				switch ev.kind {
				case holdOver:
					n.lines[ev.host].releaseAll()
				case atSwitch:
					at = append(at, ev.at)
				}
			}
			want := start + other + 100 + max(rtt, 1000) + rtt/4
			for _, got := range at {
				if got != want {
					t.Errorf("round trip %d, another frame after %d: arrives at %d, want %d", rtt, other, got-start, want-start)
				}
			}
			if len(at) == 0 || len(l.held) != 0 {
				t.Errorf("%d frames arrived, %d are held", len(at), len(l.held))
			}
		}
	}
}

// TestPortBorders: a port takes what fills its buffer exactly, and without a threshold it marks
// nothing.
func TestPortBorders(t *testing.T) {
	n := network(t, func(c *NetworkConfig) { c.Rate, c.Buffer = 1e9, 5000 })
	f := add(t, n, FlowConfig{From: 0, To: 1, Sizes: []int{8}, Start: 1e9})
	for i := range uint32(5) {
		n.forward(frame(n, f, 1250, i))
	}
	if p := n.Ports[1]; p.Sent != 4 || p.Dropped != 1 || p.Marked != 0 || p.Peak != 5000 || p.Bytes != 5000 {
		t.Errorf("%d sent, %d dropped, %d marked, %d queued, %d bytes", p.Sent, p.Dropped, p.Marked, p.Peak, p.Bytes)
	}
}

// TestUplinkIsIdleAfterTheFrame: a host sends its next packet in the nanosecond in which the last
// bit of the one before has left, and that arrives a quarter of a round trip later.
func TestUplinkIsIdleAfterTheFrame(t *testing.T) {
	n := network(t, func(c *NetworkConfig) { c.Rate = 3e9 })
	f := add(t, n, FlowConfig{From: 0, To: 1, Sizes: []int{1000 - Overhead - wire.PushDataLen}, Outstanding: 1, Start: 5000})
	if f.start < n.Now+5000 || f.start >= n.Now+5000+n.cfg.RTT {
		t.Errorf("a flow that starts after 5 µs starts after %d ns", f.start-n.Now)
	}
	n.Run(f.start - 1)
	if n.Hosts[0].sending || f.outstanding != 0 {
		t.Error("it sends before it starts")
	}
	n.Run(f.start)
	if !n.Hosts[0].sending || f.outstanding != 1 {
		t.Fatal("it does not send")
	}
	for _, ev := range n.events.heap { // 8000 bits at 3 Gbit/s: 2666.67 ns
		switch {
		case ev.kind == uplinkIdle && ev.at != f.start+2667:
			t.Errorf("idle after %d ns", ev.at-f.start)
		case ev.kind == atSwitch && ev.at != f.start+2666+2500:
			t.Errorf("arrives after %d ns", ev.at-f.start)
		}
	}

	n = network(t, func(c *NetworkConfig) { c.Rate = 1e9 })
	f = add(t, n, f.cfg)
	n.Run(f.start)
	for _, ev := range n.events.heap { // 8 µs to the picosecond
		if ev.kind == uplinkIdle && ev.at != f.start+8000 {
			t.Errorf("idle after %d ns, want 8000", ev.at-f.start)
		}
	}
}

// TestNetworkKnowsWhatArrived: the network records what a receiver accepts, so that another copy of
// it is spurious.
func TestNetworkKnowsWhatArrived(t *testing.T) {
	n := network(t, func(*NetworkConfig) {})
	f := add(t, n, FlowConfig{From: 0, To: 1, Sizes: []int{8}, Outstanding: 1})
	n.Run(f.start + 100_000)
	h := &f.from.history
	if h.tally.first < 3 || h.tally.spurious != 0 {
		t.Fatalf("%+v", h.tally)
	}
	h.ended(frame(n, f, 1000, 0), false)
	h.ended(frame(n, f, 1000, h.highest[dataWindow]), false)
	if h.tally.spurious != 1 {
		t.Errorf("%d packets of those that arrived and did not are spurious, want the first", h.tally.spurious)
	}
}

// known is congestion control whose delay and target the test sets.
type known struct{ cc.Fixed }

func (k known) Init(s *cc.State)                        { k.Fixed.Init(s); s.Delay = 100 }
func (k known) Update(*cc.State, *cc.Event) cc.Result   { return cc.Result{} }
func (k known) Target(fcwnd float64, hops uint8) uint32 { return uint32(fcwnd*10) + uint32(hops) }

// TestDelayInNanoseconds: delay and target of samples and of the result are means of the flows', in
// nanoseconds.
func TestDelayInNanoseconds(t *testing.T) {
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

// TestCountersAfterTheWarmUp: what ports and flows counted before the end of the warm-up is not in
// the result.
func TestCountersAfterTheWarmUp(t *testing.T) {
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

// TestFlowsStartApart: flows with the same start time start at different times within a round trip,
// and draw different sizes.
func TestFlowsStartApart(t *testing.T) {
	n := network(t, func(*NetworkConfig) {})
	starts, draws := map[falcon.Time]bool{}, map[uint64]bool{}
	early, late := false, false
	for range 20 {
		f := add(t, n, FlowConfig{From: 0, To: 1, Sizes: []int{8}, Start: 1000})
		starts[f.start], draws[f.rnd] = true, true
		after := f.start - n.Now - 1000
		early, late = early || after < n.cfg.RTT/4, late || after >= n.cfg.RTT*3/4
	}
	if len(starts) != 20 || len(draws) != 20 || !early || !late {
		t.Errorf("%d of 20 flows start at different times, early %v, late %v", len(starts), early, late)
	}
}

// TestFlowCounts: what an end counts of its operations.
func TestFlowCounts(t *testing.T) {
	n := network(t, func(*NetworkConfig) {})
	f := add(t, n, FlowConfig{From: 0, To: 1, Sizes: []int{8}, Outstanding: 2, Start: 1e9})
	for range 6 {
		f.operations.all[f.operations.begin(n.Now)] = operation{packets: 1, issued: true}
	}
	f.outstanding = 6
	tag := uint64(0)
	done := func(kind falcon.EventKind, code falcon.Completion, bytes int) {
		f.from.handle(n.Now, &falcon.Event{Kind: kind, Conn: f.from.conn, Tag: tag, Code: code, Data: make([]byte, bytes)})
		tag++
	}
	done(falcon.EvPushDone, falcon.CmplAck, 0)
	done(falcon.EvPullDone, falcon.CmplAck, 100)
	if f.outstanding != 4 || f.failed != 0 || f.received != 100 {
		t.Errorf("%d under way, %d failed, %d bytes", f.outstanding, f.failed, f.received)
	}
	done(falcon.EvPushDone, falcon.CmplLocalTO, 0)
	done(falcon.EvPullDone, falcon.CmplRemoteErr, 7)
	f.from.handle(n.Now, &falcon.Event{Kind: falcon.EvPull, Conn: f.from.conn, RSN: 77}) // which nobody asked
	if f.outstanding != 2 || f.failed != 3 || f.received != 100 {
		t.Errorf("%d under way, %d failed, %d bytes", f.outstanding, f.failed, f.received)
	}
	f.blocked = true
	f.to.handle(n.Now, &falcon.Event{Kind: falcon.EvCredit, Conn: f.to.conn})
	if !f.blocked {
		t.Error("what the other end may do lets this one go on")
	}
	f.from.handle(n.Now, &falcon.Event{Kind: falcon.EvCredit, Conn: f.from.conn})
	if f.blocked || f.dead {
		t.Error("it does not go on")
	}
	f.from.handle(n.Now, &falcon.Event{Kind: falcon.EvClosed, Conn: f.from.conn})
	if !f.dead {
		t.Error("it outlives its connection")
	}
}

// TestOutstandingOperations: a flow has as many operations in progress as allowed, and no more.
func TestOutstandingOperations(t *testing.T) {
	for _, pull := range []bool{false, true} {
		n := network(t, func(*NetworkConfig) {})
		f := add(t, n, FlowConfig{From: 0, To: 1, Pull: pull, Sizes: []int{8}, Outstanding: 3})
		n.Run(f.start)
		if got := f.from.conn.Info().Outstanding; got != 3 || f.outstanding != 3 {
			t.Errorf("pull %v: %d operations under way, %d counted, want 3", pull, got, f.outstanding)
		}
	}
}

// TestResultOfNothing: the result of a scenario in which nothing happens after the warm-up, and no
// sample is taken, contains no NaN or infinity.
func TestResultOfNothing(t *testing.T) {
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

// TestSmallestWindow: the smallest window of a sample is that of one flow, also if there is but one.
func TestSmallestWindow(t *testing.T) {
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

// TestOnes: runs of sequence numbers, to the ends of the bitmap and across its halves.
func TestOnes(t *testing.T) {
	all := ^uint64(0)
	for want, m := range map[string]wire.Bitmap128{
		"none": {}, "300": {Lo: 1}, "427": {Hi: 1 << 63}, "300-427": {Lo: all, Hi: all}, "363-364": {Lo: 1 << 63, Hi: 1},
		"300-363": {Lo: all}, "364-427": {Hi: all}, "300 364": {Lo: 1, Hi: 1}, "301-302 426-427": {Lo: 6, Hi: 3 << 62},
	} {
		if got := ones(300, m); got != want {
			t.Errorf("%x: %q, want %q", m, got, want)
		}
	}
}

// TestSealedPackets: what one node seals the other opens, also an empty packet, but not if it was
// cut or changed.
func TestSealedPackets(t *testing.T) {
	for n := range 20 {
		p := make([]byte, n, n+trailer)
		for i := range p {
			p[i] = byte(i + 1)
		}
		const now = 5_000_000
		sealed := seal(now, p)
		got, ok := open(sealed)
		if !ok || got.T1 != falcon.FalconTime(now) || !slices.Equal(got.Data, p) {
			t.Errorf("%d bytes: %v, %+v", n, ok, got)
		}
		for i := range sealed {
			sealed[i] ^= 4
			if _, ok := open(sealed); ok {
				t.Errorf("%d bytes: opened with byte %d changed", n, i)
			}
			sealed[i] ^= 4
			if _, ok := open(sealed[:i]); ok {
				t.Errorf("%d bytes: opened when cut to %d", n, i)
			}
		}
	}
}

// TestPayloadTellsItsPlace: a payload whose bytes moved, or that begins with another key, does not
// match its key.
func TestPayloadTellsItsPlace(t *testing.T) {
	const key = 0x0123456789abcdef
	b := make([]byte, 4096)
	WritePayload(b, key)
	if k, ok := CheckPayload(b); k != key || !ok {
		t.Fatalf("key %#x, %v", k, ok)
	}
	for by := 1; by < 1024; by++ {
		moved := append(slices.Clone(b[:KeyBytes]), b[KeyBytes+by:]...)
		if _, ok := CheckPayload(moved); ok {
			t.Errorf("payload that has moved by %d bytes is taken", by)
		}
	}
	for i := range 64 {
		b[i/8] ^= 1 << (i % 8)
		if _, ok := CheckPayload(b); ok {
			t.Errorf("another key is taken, bit %d", i)
		}
		b[i/8] ^= 1 << (i % 8)
	}
	for n := range KeyBytes + 1 {
		short := []byte{9, 9, 9, 9, 9, 9, 9, 9}[:n]
		WritePayload(short, 5)
		want := uint64(0)
		if n == KeyBytes {
			want = 5
		}
		if k, ok := CheckPayload(short); k != want || !ok {
			t.Errorf("payload of %d bytes: key %d, %v", n, k, ok)
		}
		if n > 0 && n < KeyBytes {
			short[n-1] = 1
			if _, ok := CheckPayload(short); ok {
				t.Errorf("payload of %d bytes is taken with one changed", n)
			}
		}
	}
}

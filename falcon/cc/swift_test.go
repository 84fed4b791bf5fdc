package cc

import (
	"math"
	"testing"
)

// ack builds an ACK event whose RTT is rtt and whose fabric delay is delay.
func ack(now, rtt, delay uint32, acked uint16) *Event {
	t4 := now
	t1 := t4 - rtt
	return &Event{Kind: Ack, T1: t1, T2: t1 + 7, T3: t1 + 7 + rtt - delay, T4: t4, Acked: acked, Now: now}
}

func swift(edit ...func(*SwiftParams)) *Swift {
	p := HardwareParams()
	for _, e := range edit {
		e(&p)
	}
	return NewSwift(p)
}

func TestCase83_DelayTarget(t *testing.T) {
	w := swift()
	if math.Abs(w.alpha-246.147) > 0.001 || math.Abs(w.beta+15.384) > 0.001 {
		t.Errorf("flow scaling alpha %v beta %v", w.alpha, w.beta)
	}
	for _, tc := range []struct {
		fcwnd float64
		hops  uint8
		want  uint32
	}{{256, 0, 191}, {32, 3, 243}, {1, 3, 445}, {0.1, 3, 978}, {0.01, 5, 994}, {64, 15, 326}} {
		if got := w.target(w.p.BaseDelayTarget, tc.fcwnd, tc.hops); got != tc.want {
			t.Errorf("target(%v, %d) = %d, want %d", tc.fcwnd, tc.hops, got, tc.want)
		}
	}
	if got := w.target(TimeMask, 1, 15); got != TimeMask {
		t.Errorf("target does not saturate: %d", got)
	}
}

func TestCase84_85_FabricWindow(t *testing.T) {
	const now, rtt = 10000, 400
	for _, tc := range []struct {
		name          string
		fcwnd         float64
		delay, target uint32
		dt            uint32
		acked         uint16
		want          uint32
	}{
		{"increase", 32, 100, 243, 400, 8, 33024},
		{"increase 3/8", 8, 100, 243, 400, 3, 8576},
		{"increase below one", 0.5, 100, 243, 400, 3, 3584},
		{"decrease", 32, 500, 243, 400, 0, 19294},
		{"decrease within an RTT", 32, 500, 243, 399, 0, 32768},
		{"decrease 486", 32, 486, 243, 400, 0, 19661},
		{"largest decrease", 32, 100000, 243, 400, 0, 16384},
		{"largest decrease of 2.75", 2.75, 100000, 243, 400, 0, 1408},
		{"delay equals target", 32, 243, 243, 400, 8, 32768},
		{"at the maximum", 256, 100, 243, 400, 8, 262144},
		{"at the minimum", 0.01, 100000, 243, 400, 0, 10},
	} {
		w := swift()
		s := State{Delay: tc.delay, FabricMarker: now - tc.dt}
		got := w.fabricWindow(&s, &Event{Acked: tc.acked}, tc.fcwnd, tc.target, now, rtt)
		if toFixed(got) != tc.want {
			t.Errorf("%s: %v = %d, want %d", tc.name, got, toFixed(got), tc.want)
		}
	}
}

// The same numbers through Update, with the target of three hops at fcwnd 32 being 243.
func TestCase85_FabricWindowAndMarker(t *testing.T) {
	for _, tc := range []struct {
		name              string
		rtt, delay, since uint32
		want, marker      uint32
	}{
		{"increase, marker trails", 300, 100, 1000, 33024, 50000 - 300},
		{"increase, marker within an RTT stays", 300, 100, 200, 33024, 50000 - 200},
		{"decrease, marker now", 400, 400, 400, uint32(math.Round(32768 * (1 - 0.8*float64(400-243)/400))), 50000},
		{"no decrease within an RTT", 400, 400, 399, 32768, 50000 - 399},
	} {
		w := swift()
		s := State{Fcwnd: 32 * One, Ncwnd: 64, FabricMarker: 50000 - tc.since, Direction: Increase, BaseDelay: 191, Select: DelayFabric}
		ev := ack(50000, tc.rtt, tc.delay, 8)
		ev.Hops = 3
		if res := w.Update(&s, ev); res.IPG != 0 || res.Repath {
			t.Errorf("%s: %+v", tc.name, res)
		}
		if s.Fcwnd != tc.want || s.FabricMarker != tc.marker || s.Delay != tc.delay {
			t.Errorf("%s: fcwnd %d (want %d) marker %d (want %d) delay %d", tc.name, s.Fcwnd, tc.want, s.FabricMarker, tc.marker, s.Delay)
		}
	}
}

func TestCase89_NICWindow(t *testing.T) {
	const now, rtt = 10000, 400
	for _, tc := range []struct {
		name    string
		level   uint8
		dir     Direction
		dt      uint32
		want    uint32
		wantDir Direction
		moved   bool
	}{
		{"within an RTT", 10, Increase, 399, 100, Increase, false},
		{"after an RTT", 10, Increase, 400, 101, Increase, true},
		{"turning up at once", 10, Decrease, 0, 101, Increase, true},
		{"just above", 16, Increase, 400, 95, Decrease, true},
		{"full", 31, Increase, 400, 59, Decrease, true},
		{"full within an RTT", 31, Increase, 399, 100, Increase, false},
		{"at the target", 15, Increase, 400, 100, Increase, false},
	} {
		w := swift()
		s := State{Ncwnd: 100, Direction: tc.dir, NICMarker: now - tc.dt}
		w.setNcwnd(&s, w.nicWindow(&s, &Event{RxOccupancy: tc.level}, now, rtt), now, rtt)
		marker := uint32(now)
		if !tc.moved {
			marker = now - min(tc.dt, rtt)
		}
		if s.Ncwnd != tc.want || s.Direction != tc.wantDir || s.NICMarker != marker {
			t.Errorf("%s: ncwnd %d dir %d marker %d, want %d %d %d", tc.name, s.Ncwnd, s.Direction, s.NICMarker, tc.want, tc.wantDir, marker)
		}
	}
}

func TestCase89_ResourceNackHalvesTheNICWindow(t *testing.T) {
	w := swift()
	s := State{Fcwnd: 8 * One, Ncwnd: 100, Direction: Increase, NICMarker: 50000, BaseDelay: 191, Select: DelayFabric}
	ev := ack(50000, 400, 100, 0)
	ev.Kind = NackResource
	w.Update(&s, ev)
	if s.Ncwnd != 50 || s.Direction != Decrease {
		t.Fatalf("first: %d %d", s.Ncwnd, s.Direction)
	}
	w.Update(&s, ev)
	if s.Ncwnd != 50 {
		t.Fatalf("second within an RTT: %d", s.Ncwnd)
	}
	s.Ncwnd, ev.Kind = 100, Nack
	w.Update(&s, ev)
	if s.Ncwnd < 100 {
		t.Fatalf("another NACK code cut the NIC window: %d", s.Ncwnd)
	}
	s.Ncwnd, s.Direction, ev.Kind = 1, Increase, NackResource
	w.Update(&s, ev)
	if s.Ncwnd != 1 {
		t.Fatalf("below the minimum: %d", s.Ncwnd)
	}
}

func TestCase87_Retransmit(t *testing.T) {
	for _, tc := range []struct {
		count uint8
		dt    uint32
		want  uint32
	}{{1, 400, 16 * One}, {1, 399, 32 * One}, {2, 400, 32 * One}, {3, 400, 10}, {6, 400, 10}, {3, 399, 32 * One}} {
		w := swift()
		s := State{Fcwnd: 32 * One, Ncwnd: 64, RTT: 400, FabricMarker: 50000 - tc.dt}
		w.Update(&s, &Event{Kind: Retransmit, RetransmitCount: tc.count, Now: 50000})
		if s.Fcwnd != tc.want {
			t.Errorf("count %d dt %d: fcwnd %d, want %d", tc.count, tc.dt, s.Fcwnd, tc.want)
		}
	}
}

func TestCase91_EackDrop(t *testing.T) {
	for _, on := range []bool{false, true} {
		w := swift(func(p *SwiftParams) { p.MaxDecreaseOnDrop = on })
		s := State{Fcwnd: 32 * One, Ncwnd: 64, FabricMarker: 50000 - 400, BaseDelay: 191, Select: DelayFabric}
		ev := ack(50000, 400, 100, 0)
		ev.EackDrop = true
		w.Update(&s, ev)
		w.Update(&s, ev) // within an RTT of the cut
		if want := map[bool]uint32{false: 32 * One, true: 16 * One}[on]; s.Fcwnd != want {
			t.Errorf("option %v: %d, want %d", on, s.Fcwnd, want)
		}
	}
}

func TestCase83_GapAndTimeout(t *testing.T) {
	w := swift()
	for _, tc := range []struct {
		fcwnd    float64
		rtt, ipg uint32
		rto      uint32
	}{
		{0.5, 400, 205, 7629},
		{0.1, 400, 1024, 7629},
		{0.01, 400, 10240, 40800},
		{0.01, 4000, 65535, 263996},
		{1, 100, 0, 7629},
		{2, 4000, 0, 8000},
		{2, 8388608, 0, 16777215},
	} {
		if got := interPacketGap(tc.fcwnd, tc.rtt); got != tc.ipg {
			t.Errorf("gap(%v, %d) = %d, want %d", tc.fcwnd, tc.rtt, got, tc.ipg)
		}
		if got := w.timeout(tc.rtt, tc.ipg); got != tc.rto {
			t.Errorf("timeout(%d, %d) = %d, want %d", tc.rtt, tc.ipg, got, tc.rto)
		}
	}
}

func TestCase79_80_Delays(t *testing.T) {
	for _, d := range []uint32{0, 1<<24 - 1500, 1<<32 - 2000} { // the second and third wrap
		ev := Event{T1: 1000 + d, T2: 2000 + d, T3: 2500 + d, T4: 2600 + d}
		got := [5]uint32{ev.RTT(), ev.Delay(DelayFull), ev.Delay(DelayFabric), ev.Delay(DelayForward), ev.Delay(DelayReverse)}
		if got != [5]uint32{1600, 1600, 1100, 1000, 100} {
			t.Errorf("offset %d: %v", d, got)
		}
	}
	lie := Event{T1: 1000, T2: 1000, T3: 1002, T4: 1001}
	if lie.Delay(DelayFabric) != 0 {
		t.Errorf("turnaround above the round trip: %d", lie.Delay(DelayFabric))
	}
	for _, tc := range [][3]uint32{{1000, 400, 600}, {1000, 1<<24 - 100, 1100}, {1000, 1100, 1<<24 - 100}} {
		if got := since(tc[0], tc[1]); got != tc[2] {
			t.Errorf("since(%d, %d) = %d, want %d", tc[0], tc[1], got, tc[2])
		}
	}
	if smooth(0.75, 100, 201) != 125 || smooth(0, 100, 201) != 201 {
		t.Error("smooth")
	}
}

func TestCase90_PLB(t *testing.T) {
	w := swift(func(p *SwiftParams) { p.PLB = true; p.MaxFcwnd = 64; p.MinFcwnd = 64; p.InitialFcwnd = 64 })
	var s State
	w.Init(&s)
	now := uint32(100000)
	round := func(kind Kind, delay uint32) (repath bool) {
		for range 4 { // a window of 64 packets in four ACKs
			now += 100
			ev := ack(now, 5000, delay, 16)
			ev.Kind = kind
			repath = w.Update(&s, ev).Repath || repath
			s.Ncwnd = 64
		}
		return repath
	}
	for i := 1; i <= 4; i++ {
		if round(Ack, 5000) {
			t.Fatalf("repath after %d congested rounds", i)
		}
	}
	if round(Ack, 10) || s.PLBAttempts != 0 {
		t.Fatal("a good round did not reset the attempts")
	}
	for range 10 {
		if round(Nack, 5000) {
			t.Fatal("repath on a NACK")
		}
	}
	for i := 1; i <= 5; i++ {
		if got := round(Ack, 5000); got != (i == 5) {
			t.Fatalf("round %d: repath %v", i, got)
		}
	}
	off := swift()
	off.Init(&s)
	for range 100 {
		if round := off.Update(&s, ack(now, 5000, 5000, 64)); round.Repath {
			t.Fatal("repath while off")
		}
	}
}

func TestFixedOnlyMeasures(t *testing.T) {
	f := Fixed{Fcwnd: 16 * One, Ncwnd: 9, RTO: 1000}
	var s State
	f.Init(&s)
	for _, k := range []Kind{Ack, Nack, NackResource, Retransmit} {
		ev := ack(50000, 400, 100, 3)
		ev.Kind = k
		if res := f.Update(&s, ev); res != (Result{}) {
			t.Errorf("kind %d: %+v", k, res)
		}
	}
	if s != (State{Fcwnd: 16 * One, Ncwnd: 9, RTO: 1000, RTT: 400, Delay: 100, Select: DelayFabric}) {
		t.Errorf("%+v", s)
	}
}

func TestSoftwareProfileBounds(t *testing.T) {
	w := NewSwift(SoftwareParams())
	var s State
	w.Init(&s)
	for i := range uint32(50) {
		w.Update(&s, &Event{Kind: Retransmit, RetransmitCount: 6, Now: i * 100000})
	}
	if s.Fcwnd != One || s.RTO != 76294 {
		t.Errorf("fcwnd %d RTO %d", s.Fcwnd, s.RTO)
	}
}

// Whatever a peer reports, the state stays within its formats and the call does not panic.
func FuzzUpdate(f *testing.F) {
	f.Add(uint8(0), uint8(3), uint8(31), uint8(1), uint16(8), uint32(1), uint32(2), uint32(3), uint32(4), uint32(5), uint32(32*One), uint32(64))
	f.Fuzz(func(t *testing.T, kind, hops, level, count uint8, acked uint16, t1, t2, t3, t4, now, fcwnd, ncwnd uint32) {
		w := swift(func(p *SwiftParams) { p.PLB = true })
		s := State{Fcwnd: fcwnd & MaxFcwnd, Ncwnd: 1 + ncwnd%256, RTT: t1 & TimeMask, BaseDelay: t2 & TimeMask, Select: DelaySelect(kind >> 5 & 3), Direction: Direction(kind >> 7)}
		ev := Event{Kind: Kind(kind % 4), Hops: hops & 15, RxOccupancy: level & 31, RetransmitCount: count, Acked: acked, T1: t1, T2: t2, T3: t3, T4: t4, Now: now}
		for range 3 {
			res := w.Update(&s, &ev)
			if s.Fcwnd < 10 || s.Fcwnd > 256*One || s.Ncwnd < 1 || s.Ncwnd > 256 || s.RTO < w.p.MinRTO || s.RTO > TimeMask || res.IPG > MaxIPG ||
				s.RTT > TimeMask || s.Delay > TimeMask || s.FabricMarker > TimeMask || s.NICMarker > TimeMask {
				t.Fatalf("out of range: %+v %+v", s, res)
			}
		}
	})
}

func TestUpdateDoesNotAllocate(t *testing.T) {
	var alg Algorithm = swift()
	var s State
	alg.Init(&s)
	ev := ack(50000, 400, 100, 3)
	if n := testing.AllocsPerRun(100, func() { alg.Update(&s, ev) }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

// TestGuardingAcrossTheWrap: Falcon §10.3.6. A window that fell at 5 and only rose since then may
// fall again just after the 24 bits of time have wrapped, because the rises in between moved the
// marker along.
func TestGuardingAcrossTheWrap(t *testing.T) {
	const rtt = 1000
	w := swift()
	s := State{Fcwnd: 64 * One, Ncwnd: 64, FabricMarker: 1<<24 + 5 - 2*rtt, Direction: Increase, BaseDelay: 191, Select: DelayFabric}
	fell := func(now, delay uint32) bool {
		before := s.Fcwnd
		w.Update(&s, ack(now&TimeMask, rtt, delay, 0))
		return s.Fcwnd < before
	}
	if !fell(5, 900) {
		t.Fatal("first cut refused")
	}
	if fell(5+rtt-1, 900) {
		t.Fatal("cut twice within an RTT")
	}
	for now := uint32(5 + rtt); now < 1<<24; now += 1 << 20 {
		if fell(now, 10) {
			t.Fatal("cut without congestion")
		}
	}
	if !fell(1<<24+10, 900) {
		t.Error("the cut after the wrap was taken for one within an RTT of the first")
	}
}

// TestAWindowAtItsBoundCountsAsMoved: a window that stays at its bound counts as moved there, so
// that it may leave the bound at once in the other direction, but may not move again in the same
// one. A window between its bounds that does not move has a marker no older than a round trip.
func TestAWindowAtItsBoundCountsAsMoved(t *testing.T) {
	const now, rtt = 10000, 400
	for _, c := range []struct {
		name        string
		from        uint32
		to          float64
		dir         Direction
		age         uint32
		want        uint32
		wantDir     Direction
		wantElapsed uint32 // since the marker
	}{
		{"at the least", 2, 2, Increase, 100, 2, Decrease, 0},
		{"below the least", 2, 1, Increase, 100, 2, Decrease, 0},
		{"to the least", 3, 1.4, Increase, 100, 2, Decrease, 0},
		{"at the most", 8, 8, Decrease, 100, 8, Increase, 0},
		{"above the most", 8, 9, Decrease, 100, 8, Increase, 0},
		{"to the most", 7, 8.5, Decrease, 100, 8, Increase, 0},
		{"down", 6, 5.4, Increase, 100, 5, Decrease, 0},
		{"up", 5, 5.5, Decrease, 100, 6, Increase, 0},
		{"neither", 5, 5.4, Increase, 100, 5, Increase, 100},
		{"neither, for a round trip", 5, 4.5, Decrease, 400, 5, Decrease, 400},
		{"neither, for longer", 5, 5, Decrease, 401, 5, Decrease, 400},
	} {
		w := swift(func(p *SwiftParams) { p.MinNcwnd, p.MaxNcwnd = 2, 8 })
		s := State{Ncwnd: c.from, Direction: c.dir, NICMarker: now - c.age}
		w.setNcwnd(&s, c.to, now, rtt)
		if s.Ncwnd != c.want || s.Direction != c.wantDir || now-s.NICMarker != c.wantElapsed {
			t.Errorf("%s: window %d, direction %d, marker %d ago; want %d, %d, %d", c.name, s.Ncwnd, s.Direction, now-s.NICMarker, c.want, c.wantDir, c.wantElapsed)
		}
	}
	for _, c := range []struct {
		name        string
		from        uint32
		to          float64
		wantElapsed uint32
	}{
		{"at the least", 512, 0.5, 0},
		{"to the least", 1024, 0.5, 0},
		{"just above the least", 513, 513.0 / One, 100},
		{"down", 2048, 2047.0 / One, 0},
		{"neither", 2048, 2, 100},
		{"up", 2048, 3, 100},
	} {
		w := swift(func(p *SwiftParams) { p.MinFcwnd = 0.5 })
		s := State{Fcwnd: c.from, FabricMarker: now - 100}
		w.setFcwnd(&s, c.to, now, rtt)
		if s.Fcwnd != toFixed(c.to) || now-s.FabricMarker != c.wantElapsed {
			t.Errorf("fabric window %s: %d, marker %d ago, want %d", c.name, s.Fcwnd, now-s.FabricMarker, c.wantElapsed)
		}
	}
}

// TestADelayOfZeroIsNeverTooHigh: a delay or a buffer level of 0 is never too high, even if the
// target is 0.
func TestADelayOfZeroIsNeverTooHigh(t *testing.T) {
	const now, rtt = 10000, 400
	w := swift(func(p *SwiftParams) { p.TargetRxLevel = 0 })
	s := State{Ncwnd: 100, Direction: Increase, NICMarker: now - rtt}
	if got := w.nicWindow(&s, &Event{}, now, rtt); got != 100 {
		t.Errorf("NIC window %v of 100 at level 0", got)
	}
	s = State{FabricMarker: now - rtt}
	if got := w.fabricWindow(&s, &Event{Acked: 5}, 32, 0, now, rtt); got != 32 {
		t.Errorf("fabric window %v of 32 with no delay", got)
	}
}

// TestADropBeyondTheWindowCountsAsLossIfSet: with the option on, a drop beyond the receive window
// has the same effect as one that the bitmaps show.
func TestADropBeyondTheWindowCountsAsLossIfSet(t *testing.T) {
	for _, ev := range []Event{{EackOwn: true}, {EackDrop: true}, {EackDrop: true, EackOwn: true}} {
		w := swift(func(p *SwiftParams) { p.MaxDecreaseOnDrop = true })
		s := State{Delay: 1, FabricMarker: 10000 - 400}
		if got := w.fabricWindow(&s, &ev, 32, 200, 10000, 400); got != 16 {
			t.Errorf("%+v: window %v, want 16", ev, got)
		}
	}
}

// TestADelayOfThePathIsBelowASmallWindowsTarget: a delay that is exactly that of the path is below
// the target of a small window, which flow scaling makes larger.
func TestADelayOfThePathIsBelowASmallWindowsTarget(t *testing.T) {
	w := swift()
	s := State{Fcwnd: One, Ncwnd: 64, FabricMarker: 50000 - 1000, BaseDelay: 191, Select: DelayFabric}
	ev := ack(50000, 400, 191, 1)
	w.Update(&s, ev)
	if s.Fcwnd != 2*One {
		t.Errorf("window %d, want it to grow by a packet", s.Fcwnd)
	}
}

// TestWithEqualScalingWindowsNoFlowIsScaled: where the windows between which flows are scaled are
// equal, no flow is.
func TestWithEqualScalingWindowsNoFlowIsScaled(t *testing.T) {
	w := swift(func(p *SwiftParams) { p.MinFlowScalingWindow, p.MaxFlowScalingWindow = 4, 4 })
	for _, fcwnd := range []float64{0.01, 4, 100} {
		if got := w.target(191, fcwnd, 2); got != 191+2*8 {
			t.Errorf("target %d of a window of %v", got, fcwnd)
		}
	}
}

// TestARoundIsCongestedFromTheThresholdOn: a round is congested when at least the threshold's share
// of its packets was, and a packet is when the delay is above the multiple of the target.
func TestARoundIsCongestedFromTheThresholdOn(t *testing.T) {
	for _, c := range []struct {
		congested int // of four packets
		delay     uint32
		want      bool
	}{{4, 201, true}, {2, 201, true}, {1, 201, false}, {4, 200, false}} {
		w := swift(func(p *SwiftParams) { p.PLB, p.PLBTargetMultiple, p.PLBThreshold, p.PLBAttempts = true, 2, 0.5, 1 })
		s := State{}
		var repath bool
		for n := range 4 {
			s.Delay = 1
			if n < c.congested {
				s.Delay = c.delay
			}
			if repath {
				t.Errorf("%+v: a new path before the round is over", c)
			}
			repath = w.plb(&s, &Event{Acked: 1}, 100, 4)
		}
		if repath != c.want || s.PLBAcked != 0 || s.PLBCongested != 0 {
			t.Errorf("%+v: a new path: %v, state %+v", c, repath, s)
		}
	}
}

// TestPLBCountersStayWithinTheirFields: the counters stay within their fields, however much is
// acknowledged at once.
func TestPLBCountersStayWithinTheirFields(t *testing.T) {
	w := swift(func(p *SwiftParams) { p.PLB, p.PLBTargetMultiple, p.PLBThreshold, p.PLBAttempts = true, 1, 0.5, 255 })
	s := State{Delay: 1000}
	for range 2 {
		if w.plb(&s, &Event{Acked: 600}, 100, 1e9) {
			t.Error("a new path before the round is over")
		}
	}
	if s.PLBAcked != plbMaxCount || s.PLBCongested != plbMaxCount {
		t.Errorf("%+v", s)
	}
	for n := range 20 {
		w.plb(&s, &Event{Acked: 1}, 100, 1)
		if want := min(n+1, plbMaxAttempts); int(s.PLBAttempts) != want {
			t.Errorf("%d congested rounds are counted as %d", n+1, s.PLBAttempts)
		}
	}
}

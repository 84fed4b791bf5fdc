package cc

import "testing"

// TestMarkersAtTheBounds: a window that stays at its bound counts as moved there, so that it may
// leave the bound at once in the other direction, but may not move again in the same one. A window
// between its bounds that does not move has a marker no older than a round trip.
func TestMarkersAtTheBounds(t *testing.T) {
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

// TestNothingMeasured: a delay or a buffer level of 0 is never too high, even if the target is 0.
func TestNothingMeasured(t *testing.T) {
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

// TestOutOfWindowIsADrop: with the option on, a drop beyond the receive window has the same effect
// as one that the bitmaps show.
func TestOutOfWindowIsADrop(t *testing.T) {
	for _, ev := range []Event{{EackOwn: true}, {EackDrop: true}, {EackDrop: true, EackOwn: true}} {
		w := swift(func(p *SwiftParams) { p.MaxDecreaseOnDrop = true })
		s := State{Delay: 1, FabricMarker: 10000 - 400}
		if got := w.fabricWindow(&s, &ev, 32, 200, 10000, 400); got != 16 {
			t.Errorf("%+v: window %v, want 16", ev, got)
		}
	}
}

// TestDelayAtThePathsTarget: a delay that is exactly that of the path is below the target of a small
// window, which flow scaling makes larger.
func TestDelayAtThePathsTarget(t *testing.T) {
	w := swift()
	s := State{Fcwnd: One, Ncwnd: 64, FabricMarker: 50000 - 1000, BaseDelay: 191, Select: DelayFabric}
	ev := ack(50000, 400, 191, 1)
	w.Update(&s, ev)
	if s.Fcwnd != 2*One {
		t.Errorf("window %d, want it to grow by a packet", s.Fcwnd)
	}
}

// TestEqualScalingWindows: where the windows between which flows are scaled are equal, no flow is.
func TestEqualScalingWindows(t *testing.T) {
	w := swift(func(p *SwiftParams) { p.MinFlowScalingWindow, p.MaxFlowScalingWindow = 4, 4 })
	for _, fcwnd := range []float64{0.01, 4, 100} {
		if got := w.target(191, fcwnd, 2); got != 191+2*8 {
			t.Errorf("target %d of a window of %v", got, fcwnd)
		}
	}
}

// TestPLBBorders: a round is congested when at least the threshold's share of its packets was, and a
// packet is when the delay is above the multiple of the target.
func TestPLBBorders(t *testing.T) {
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

// TestPLBSaturates: the counters stay within their fields, however much is acknowledged at once.
func TestPLBSaturates(t *testing.T) {
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

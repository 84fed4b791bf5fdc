package cc

import (
	"math"
	"testing"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

func TestTheDefaultAlgorithmExists(t *testing.T) {
	if _, ok := Lookup(Default); !ok || len(Names()) < 2 {
		t.Errorf("algorithms %v, default %s", Names(), Default)
	}
}

func TestAWindowGrowsHalvesAndCollapses(t *testing.T) {
	var s State
	w := Window{}
	w.Init(&s)
	w.Answered(&s, 0, 10, 0)
	if s.Window != FirstWindow+10 {
		t.Errorf("%d after 10 answers", s.Window)
	}
	w.Lost(&s, 0)
	if s.Window != (FirstWindow+10)/2 {
		t.Errorf("%d after a loss", s.Window)
	}
	before := s.Window
	w.Answered(&s, 0, before, 0)
	if s.Window != before+1 {
		t.Errorf("%d a round trip after a loss", s.Window)
	}
	w.Answered(&s, 0, 50*before, 0)
	if s.Window >= MostWindow {
		t.Fatalf("%d: too much for what follows", s.Window)
	}
	half := s.Window / 2
	for range 3 {
		if w.Collapsed(&s, 0); s.Window != LeastWindow {
			t.Errorf("%d after nothing came back", s.Window)
		}
	}
	w.Answered(&s, 0, 7, 0)
	if s.Window != LeastWindow+7 {
		t.Errorf("%d after 7 answers of a peer that was busy", s.Window)
	}
	w.Answered(&s, 0, MostWindow, 0)
	w.Answered(&s, 0, 1, 0)
	if s.Window != half {
		t.Errorf("%d, want %d: half of what it was", s.Window, half)
	}
	w.Collapsed(&s, 0)
	w.Lost(&s, 0)
	if s.Window != LeastWindow {
		t.Errorf("%d after nothing came back", s.Window)
	}
	for range 1000 {
		w.Answered(&s, 0, 100, 0)
	}
	if s.Window != MostWindow {
		t.Errorf("%d at most", s.Window)
	}
	w.Notified(&s, 5e6)
	w.Notified(&s, 5.5e6)
	if s.Window != MostWindow/2 {
		t.Errorf("%d after two notifications of one trouble", s.Window)
	}
}

// TestDCQCNFollowsTheFormulasOfThePaper follows the formulas of the paper step by step.
func TestDCQCNFollowsTheFormulasOfThePaper(t *testing.T) {
	d := DefaultDCQCN()
	var s State
	d.Init(&s)
	if s.Rate != 0 {
		t.Fatal("bounded before anything was heard")
	}
	now := vtime.Time(1e9)
	s.since = now
	for range 11 { // 1 MB in each of some milliseconds
		now += 1e6
		d.Answered(&s, now, 1000, 1e6)
	}
	d.Notified(&s, now)
	if near := 1e9 / 2; math.Abs(s.Rate-near) > near/100 || math.Abs(s.target-1e9) > 1e7 { // alpha was 1
		t.Fatalf("rate %g, target %g after a notification at 1e9", s.Rate, s.target)
	}
	low, target := s.Rate, s.target
	for i := range d.Quick {
		now += d.Pause
		d.Sent(&s, now, 0)
		if want := (low + target) / 2; math.Abs(s.Rate-want) > 1 || s.target != target {
			t.Fatalf("fast recovery %d: %g, want %g", i, s.Rate, want)
		}
		low = s.Rate
	}
	now += d.Pause
	d.Sent(&s, now, 0)
	if s.target != target+d.Raise {
		t.Errorf("additive increase: target %g, want %g", s.target, target+d.Raise)
	}
	for range d.Quick + 1 {
		d.Sent(&s, now, d.Bytes)
	}
	if s.target < target+d.Hyper {
		t.Errorf("hyper increase: target %g", s.target)
	}
	calm := s.alpha
	rate := s.Rate
	d.Notified(&s, now)
	if calm >= 0.9 || s.Rate <= rate/2 {
		t.Errorf("a lone notification after a calm time: alpha %g, rate %g of %g", calm, s.Rate, rate)
	}
	for range 10_000 {
		d.Notified(&s, now)
		now += 50e3
	}
	if s.Rate != d.Least {
		t.Errorf("rate %g under constant notifications, at least %g", s.Rate, d.Least)
	}
	now += 3600e9
	if d.Sent(&s, now, 0); s.Rate != 0 {
		t.Errorf("still bounded to %g an hour later", s.Rate)
	}
}

// TestDCQCNReducesOnceInARoundTrip: notifications within a round trip are about one trouble. They reduce the
// rate once, and another reduction before a step keeps the target.
func TestDCQCNReducesOnceInARoundTrip(t *testing.T) {
	d := DefaultDCQCN()
	var s State
	d.Init(&s)
	now := vtime.Time(1e9)
	d.Notified(&s, now)
	if s.Rate != 0 || s.Window != FirstWindow/2 {
		t.Fatalf("rate %g, window %d: there was nothing to reduce but the window", s.Rate, s.Window)
	}
	d.Answered(&s, now, 1, 1e6) // begins the measurement
	d.Answered(&s, now+5e5, 1, 1e6)
	s.Trip = 10 * d.Trip
	now += 5e5
	d.Notified(&s, now)
	first, target := s.Rate, s.target
	if near := 1e6 / 5e-4 / 2; math.Abs(first-near) > 1 {
		t.Fatalf("rate %g, want %g: half of what arrived in half a millisecond", first, near)
	}
	for range 9 {
		now += d.Calm
		if d.Notified(&s, now); s.Rate != first {
			t.Fatalf("rate %g of %g within the round trip", s.Rate, first)
		}
	}
	now += d.Calm
	if d.Notified(&s, now); s.Rate >= first || s.target != target {
		t.Fatalf("rate %g of %g, target %g of %g in the next round trip", s.Rate, first, s.target, target)
	}
	low := s.Rate
	now += 10*d.Pause - 1
	if d.Sent(&s, now, 0); s.Rate != low {
		t.Error("rate rose before its time")
	}
	if d.Sent(&s, now+1, 0); s.Rate != (low+target)/2 {
		t.Errorf("rate %g, want %g", s.Rate, (low+target)/2)
	}
}

// bounded is a connection of an algorithm whose rate was bounded at now, by the first notification.
func bounded(d DCQCN, now vtime.Time) *State {
	s := new(State)
	d.Init(s)
	d.Answered(s, now-2e6, 1, 1000)
	d.Answered(s, now-1e6, 1, 100_000) // 1e8 a second
	d.Notified(s, now)
	return s
}

// TestTheFirstRateFollowsWhatWasAnswered: the first rate limit follows from what was answered in the last whole
// millisecond, or else from what was counted since. If neither is known, only the window shrinks.
func TestTheFirstRateFollowsWhatWasAnswered(t *testing.T) {
	type answered struct {
		at    vtime.Time
		bytes int
	}
	const now = 1e9
	for name, c := range map[string]struct {
		answers []answered
		target  float64
	}{
		"nothing was answered":       {nil, 0},
		"counting has begun":         {[]answered{{now - 10, 1000}}, 0},
		"at this moment":             {[]answered{{now, 1000}, {now, 1000}}, 0},
		"less than a millisecond":    {[]answered{{now - 1000, 1000}, {now, 500}}, 5e8},
		"one ns less":                {[]answered{{now - 2e6, 1}, {now - 2e6 + 1e6 - 1, 1000}}, 1000 * 1e9 / 2e6},
		"exactly one":                {[]answered{{now - 2e6, 1}, {now - 1e6, 1000}}, 1e6},
		"a slower one behind a fast": {[]answered{{now - 4e6, 1}, {now - 3e6, 1000}, {now - 1e6, 500}}, 250_000},
	} {
		d := DefaultDCQCN()
		var s State
		d.Init(&s)
		for _, a := range c.answers {
			d.Answered(&s, a.at, 1, a.bytes)
		}
		window := s.Window
		d.Notified(&s, now)
		if c.target == 0 {
			if s.Rate != 0 || s.Window != window/2 {
				t.Errorf("%s: rate %g, window %d of %d", name, s.Rate, s.Window, window)
			}
			continue
		}
		if math.Abs(s.target-c.target) > 1 || math.Abs(s.Rate-c.target/2) > 1 || s.Window != window {
			t.Errorf("%s: target %g, rate %g, want %g", name, s.target, s.Rate, c.target)
		}
	}
}

// TestAlphaFallsOnceForEachTimeOfCalm: alpha falls once for each time of calm, whether somebody looks each time or once
// at the end.
func TestAlphaFallsOnceForEachTimeOfCalm(t *testing.T) {
	d := DefaultDCQCN()
	d.Pause = 1e12 // the rate stays
	often, seldom := bounded(d, 1e9), bounded(d, 1e9)
	before := often.alpha
	now := vtime.Time(1e9) + d.Calm - 1
	if d.Sent(often, now, 0); often.alpha != before {
		t.Error("alpha fell too early")
	}
	for now++; now < 1e9+100*d.Calm; now += d.Calm {
		was := often.alpha
		if d.Sent(often, now, 0); math.Abs(often.alpha-was*(1-d.Gain)) > 1e-12 {
			t.Fatalf("alpha %g of %g", often.alpha, was)
		}
		if d.Sent(often, now+1, 0); often.alpha >= was || math.Abs(often.alpha-was*(1-d.Gain)) > 1e-12 {
			t.Fatalf("alpha fell twice")
		}
	}
	d.Sent(seldom, now-d.Calm+d.Calm/2, 0)
	if math.Abs(often.alpha-seldom.alpha) > 1e-12 || often.alphaAt != seldom.alphaAt {
		t.Errorf("alpha %g and %g, next at %d and %d", often.alpha, seldom.alpha, often.alphaAt, seldom.alphaAt)
	}
}

// TestTheFirstStepsGoHalfwayToTheTarget: the first steps, by time or bytes, go half of the way to the target. Further ones
// of one kind raise it a little, further ones of both kinds much.
func TestTheFirstStepsGoHalfwayToTheTarget(t *testing.T) {
	d := DefaultDCQCN()
	for _, c := range []struct {
		byTime, byBytes int
		raise           float64
	}{
		{5, 0, 0},
		{0, 5, 0},
		{5, 5, 0},
		{6, 0, d.Raise},
		{0, 6, d.Raise},
		{6, 5, 6 * d.Raise},
		{8, 0, 3 * d.Raise},
		{6, 6, 6*d.Raise + d.Hyper},
		{6, 8, 6*d.Raise + 3*d.Hyper},
	} {
		now := vtime.Time(1e9)
		s := bounded(d, now)
		rate, target := s.Rate, s.target
		half := func(before float64) {
			t.Helper()
			if want := (before + s.target) / 2; math.Abs(s.Rate-want) > 1 {
				t.Errorf("%+v: rate %g, want %g", c, s.Rate, want)
			}
		}
		for range c.byTime {
			now += d.Pause
			before := s.Rate
			d.Sent(s, now, 0)
			half(before)
		}
		for range c.byBytes {
			before := s.Rate
			d.Sent(s, now, d.Bytes-1)
			if s.Rate != before {
				t.Fatalf("%+v: raised too early", c)
			}
			d.Sent(s, now, 1)
			half(before)
		}
		if math.Abs(s.target-target-c.raise) > 1 || s.Rate <= rate {
			t.Errorf("%+v: target raised by %g, want %g", c, s.target-target, c.raise)
		}
		// The next notification begins anew, from the rate that there is.
		now += 10 * d.Pause
		s.raiseAt = now + 1
		reached := s.Rate
		if d.Notified(s, now); s.target != reached {
			t.Errorf("%+v: target %g after a notification at %g", c, s.target, reached)
		}
	}
}

// TestTheRateOfTheLineIsNoBound: a rate that reaches the line's is no bound, and no step makes one of it.
func TestTheRateOfTheLineIsNoBound(t *testing.T) {
	d := DefaultDCQCN()
	d.Line = 1e8
	for _, bytes := range []int{0, d.Bytes} {
		s := bounded(d, 1e9)
		s.Rate, s.target = 1e8-2, 1e8+2 // half of the way is the line
		if d.Sent(s, 1e9+d.Pause, bytes); s.Rate != 0 {
			t.Errorf("rate %g with %d bytes sent", s.Rate, bytes)
		}
	}
	s := bounded(d, 1e9)
	s.Rate, s.target = 1e8-2, 1e8
	if d.Sent(s, 1e9+d.Pause, 0); s.Rate != 1e8-1 {
		t.Errorf("rate %g, want %g", s.Rate, 1e8-1)
	}
}

// TestTimesStretchWithTheRoundTrip: times are those of the network's round trip, where that is longer.
func TestTimesStretchWithTheRoundTrip(t *testing.T) {
	d := DefaultDCQCN()
	for trip, want := range map[vtime.Time]vtime.Time{0: 1000, d.Trip - 1: 1000, d.Trip: 1000, 2 * d.Trip: 2000, 5 * d.Trip / 2: 2500} {
		if got := d.stretch(&State{Trip: trip}, 1000); got != want {
			t.Errorf("round trip %d: %d, want %d", trip, got, want)
		}
	}
}

// TestAWindowIsReducedOnceInAMillisecond: notifications within a millisecond count once, also those of a NIC that is
// young.
func TestAWindowIsReducedOnceInAMillisecond(t *testing.T) {
	var s State
	w := Window{}
	w.Init(&s)
	for at, want := range []struct {
		now    vtime.Time
		window int
	}{{5, 16}, {6, 16}, {1e6 + 4, 16}, {1e6 + 5, 8}, {2e6 + 4, 8}, {2e6 + 5, 4}} {
		if w.Notified(&s, want.now); s.Window != want.window {
			t.Errorf("notification %d: window %d, want %d", at, s.Window, want.window)
		}
	}
}

// TestAnAnsweredWindowGrowsByOne: beyond what is known to fit the window grows by one when as many packets as it
// has were answered, and not before.
func TestAnAnsweredWindowGrowsByOne(t *testing.T) {
	var s State
	w := Window{}
	w.Init(&s)
	w.Lost(&s, 0) // 16
	for i, c := range []struct{ packets, window int }{{15, 16}, {1, 17}, {16, 17}, {1, 18}, {40, 19}, {18, 19}, {1, 20}} {
		if w.Answered(&s, 0, c.packets, 0); s.Window != c.window {
			t.Errorf("answer %d: window %d, want %d", i, s.Window, c.window)
		}
	}
	s = State{Window: LeastWindow + 1, slow: MostWindow}
	if w.Collapsed(&s, 0); s.slow != 1 || s.Window != LeastWindow {
		t.Errorf("%+v after it collapsed from three", s)
	}
	if w.Lost(&s, 0); s.Window != LeastWindow {
		t.Errorf("window %d, at least %d", s.Window, LeastWindow)
	}
}

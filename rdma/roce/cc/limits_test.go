package cc

import (
	"math"
	"testing"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

// bounded is a connection of an algorithm whose rate was bounded at now, by the first notification.
func bounded(d DCQCN, now vtime.Time) *State {
	s := new(State)
	d.Init(s)
	d.Answered(s, now-2e6, 1, 1000)
	d.Answered(s, now-1e6, 1, 100_000) // 1e8 a second
	d.Notified(s, now)
	return s
}

// TestDCQCNMeasures: the first bound comes of what was answered in the last whole millisecond, else
// of what was counted since; where neither is known the window alone falls.
func TestDCQCNMeasures(t *testing.T) {
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

// TestDCQCNCalm: alpha falls once for each time of calm, whether somebody looks each time or once
// at the end.
func TestDCQCNCalm(t *testing.T) {
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

// TestDCQCNSteps: the first steps, by time or bytes, go half of the way to the target. Further ones
// of one kind raise it a little, further ones of both kinds much.
func TestDCQCNSteps(t *testing.T) {
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

// TestDCQCNLine: a rate that reaches the line's is no bound, and no step makes one of it.
func TestDCQCNLine(t *testing.T) {
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

// TestDCQCNStretch: times are those of the network's round trip, where that is longer.
func TestDCQCNStretch(t *testing.T) {
	d := DefaultDCQCN()
	for trip, want := range map[vtime.Time]vtime.Time{0: 1000, d.Trip - 1: 1000, d.Trip: 1000, 2 * d.Trip: 2000, 5 * d.Trip / 2: 2500} {
		if got := d.stretch(&State{Trip: trip}, 1000); got != want {
			t.Errorf("round trip %d: %d, want %d", trip, got, want)
		}
	}
}

// TestWindowOneTrouble: notifications within a millisecond count once, also those of a NIC that is
// young.
func TestWindowOneTrouble(t *testing.T) {
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

// TestWindowGrows: beyond what is known to fit the window grows by one when as many packets as it
// has were answered, and not before.
func TestWindowGrows(t *testing.T) {
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

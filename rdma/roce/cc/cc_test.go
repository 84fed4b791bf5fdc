package cc

import (
	"math"
	"testing"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

func TestNames(t *testing.T) {
	if _, ok := Lookup(Default); !ok || len(Names()) < 2 {
		t.Errorf("algorithms %v, default %s", Names(), Default)
	}
}

// TestWindow grows, halves and collapses.
func TestWindow(t *testing.T) {
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

// TestDCQCN follows the formulas of the paper step by step.
func TestDCQCN(t *testing.T) {
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

// TestDCQCNOneTrouble: notifications within a round trip are about one trouble. They reduce the
// rate once, and another reduction before a step keeps the target.
func TestDCQCNOneTrouble(t *testing.T) {
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

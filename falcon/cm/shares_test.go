package cm

import (
	"errors"
	"testing"
)

// Holders that take as much as they can get equal shares, and the next one finds room.
func TestGreedyHoldersGetEqualSharesAndLeaveRoom(t *testing.T) {
	for _, multiple := range []int{1, 3} {
		for _, holders := range []int{1, 2, 3, 10, 190} {
			s := Shares[int]{Size: 16384, Multiple: multiple}
			for again := true; again; {
				again = false
				for k := range holders {
					if s.Room(k) {
						s.Take(k)
						again = true
					}
				}
			}
			want := multiple * s.Size / (multiple*holders + 1)
			for k := range holders {
				if n := s.Held(k); n < want-multiple || n > want+multiple {
					t.Errorf("multiple %d, %d holders: one has %d, want about %d", multiple, holders, n, want)
				}
			}
			free := s.Size - s.used
			for s.Room(holders) {
				s.Take(holders)
			}
			if n := s.Held(holders); n < free/2 {
				t.Errorf("multiple %d, %d holders: the next gets %d of %d", multiple, holders, n, free)
			}
			for k := range holders + 1 {
				for s.Held(k) > 0 {
					s.Give(k)
				}
			}
			if s.used != 0 || len(s.by) != 0 {
				t.Errorf("%d of %d holders are left", s.used, len(s.by))
			}
		}
	}
}

// Connections in TIME-WAIT count for their function, and end early for its next ones.
func TestRestMakesWay(t *testing.T) {
	w, a, b := two(t, func(c *Config) { c.MaxPerFunction = 3 })
	a.maxCIDs = 3
	for range 10 {
		ida, _ := establish(t, w, a, b)
		if err := a.disconnect(ida); err != nil {
			t.Fatal(err)
		}
		w.settle()
		if n := len(a.m.conns.byID); n > 3 {
			t.Fatalf("%d connections of a function that may have 3", n)
		}
	}
	if n := a.m.Stats().CutShort; n != 7 {
		t.Errorf("%d rests were cut short, want 7", n)
	}
	for range 3 {
		establish(t, w, a, b)
	}
	if _, err := a.connect(0, 2, 0, 1); !errors.Is(err, ErrLimit) {
		t.Errorf("a fourth connection of three: %v", err)
	}
	if _, err := a.connect(1, 2, 0, 1); err == nil || errors.Is(err, ErrLimit) {
		t.Errorf("another function's connection ended one that rests, or is refused by its limit: %v", err)
	}
}

// A function that floods a listener leaves room for requests of other functions, on its host and on
// others.
func TestBacklogIsShared(t *testing.T) {
	w, a, b := two(t, func(c *Config) { c.Backlog = 32 })
	for range 100 {
		if _, err := a.connect(0, 2, 0, 1); err != nil {
			t.Fatal(err)
		}
	}
	w.settle()
	if n := len(b.waiting()); n != 16 {
		t.Errorf("%d requests of one source wait, want half of 32", n)
	}
	for range 5 {
		if _, err := a.connect(1, 2, 0, 1); err != nil {
			t.Fatal(err)
		}
		if _, err := b.connect(2, 2, 0, 1); err != nil {
			t.Fatal(err)
		}
	}
	w.settle()
	if n := len(b.waiting()); n != 26 {
		t.Errorf("%d requests wait, want 10 more", n)
	}
}

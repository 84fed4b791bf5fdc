package guest

import (
	"slices"
	"testing"
	"time"
)

// caller is a channel that is served until it is ended.
type caller struct {
	name    string
	expects time.Duration
	dropped bool
	done    chan struct{}
}

func (c *caller) Expect(d time.Duration) { c.expects = d }
func (c *caller) Drop()                  { c.dropped = true }
func (c *caller) End()                   { close(c.done) }

// TestSessionsMakeRoom checks the limit on a guest's channels. The oldest that has not said hello
// is ended to make room for another; channels that have said hello and those of other guests are
// not.
func TestSessionsMakeRoom(t *testing.T) {
	s := Sessions{HelloTimeout: time.Hour}
	a, b := Key{Attachment: "a", CID: 3}, Key{Attachment: "a", CID: 4}
	var all []*caller
	start := func(name string, from Key, limit int) bool {
		c := &caller{name: name, done: make(chan struct{})}
		if !s.Start(c, from, limit, func() { <-c.done }) {
			return false
		}
		if c.expects != time.Hour {
			t.Errorf("%s has %v for its hello", name, c.expects)
		}
		all = append(all, c)
		return true
	}
	dropped := func() (names []string) {
		for _, c := range all {
			if c.dropped {
				names = append(names, c.name)
			}
		}
		return names
	}
	if start("none", a, 0) {
		t.Error("a guest without a right to channels has one")
	}
	if !start("a1", a, 3) || !start("b1", b, 1) || !start("a2", a, 3) || !start("a3", a, 3) || dropped() != nil {
		t.Errorf("dropped %v below the limit", dropped())
	}
	if !s.greet(all[0]) || !start("a4", a, 3) || !slices.Equal(dropped(), []string{"a2"}) {
		t.Errorf("dropped %v, want the oldest that has not said hello", dropped())
	}
	if s.greet(all[2]) {
		t.Error("one that made room said hello in time")
	}
	if !start("a5", a, 3) || !slices.Equal(dropped(), []string{"a2", "a3"}) {
		t.Errorf("dropped %v", dropped())
	}
	for _, c := range all[4:] {
		if !s.greet(c) {
			t.Errorf("%s was too late", c.name)
		}
	}
	if start("a6", a, 3) || !start("a6", a, 4) || !slices.Equal(dropped(), []string{"a2", "a3"}) {
		t.Errorf("dropped %v, and all had said hello", dropped())
	}
	if n := s.Begun(); n != 7 {
		t.Errorf("%d channels were served", n)
	}
	s.CloseAll()
	if start("late", b, 9) || s.Begun() != 7 || s.count(a)+s.count(b) != 0 {
		t.Error("a channel begins after all were to end")
	}
	if !s.greet(all[0]) { // it ended by itself, not to make room
		t.Error("one that is not served any more made room")
	}
}

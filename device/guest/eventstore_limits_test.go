package guest

import (
	"math"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestEventsOfEveryKindGo checks that destroying an object drops all events about it, and none
// about objects of other kinds with the same number.
func TestEventsOfEveryKindGo(t *testing.T) {
	all := []abi.EventType{
		abi.EventQPFatal, abi.EventQPReqErr, abi.EventQPAccessErr, abi.EventCommEst, abi.EventSQDrained, abi.EventLastWQE,
		abi.EventCQError, abi.EventSRQLimit, abi.EventSRQError, abi.EventFunctionState, abi.EventConnectRequest,
	}
	for kind, gone := range map[abi.Object]int{abi.ObjectQP: 6, abi.ObjectCQ: 1, abi.ObjectSRQ: 2, abi.ObjectMR: 0} {
		var s EventStore
		if s.Gone(kind, 3); !s.Empty() {
			t.Error("an empty store has something")
		}
		for _, typ := range all {
			for n := range uint32(3) {
				s.AsyncEvent(&abi.AsyncEvent{Type: typ, Number: n + 2})
			}
		}
		s.Gone(kind, 3)
		s.Gone(kind, 3)
		if n := s.Waiting(); n != 3*len(all)-gone || s.Empty() {
			t.Errorf("%v: %d events wait, want %d", kind, n, 3*len(all)-gone)
		}
		if list := s.Async(); len(list) != s.Waiting() {
			t.Errorf("%v: %d events are told, %d wait", kind, len(list), s.Waiting())
		}
		for _, typ := range all { // each replaces the waiting one
			s.AsyncEvent(&abi.AsyncEvent{Type: typ, Number: 4, Status: 9})
		}
		if n := s.Waiting(); n != 3*len(all)-gone+1 { // the event about a connection is not merged
			t.Errorf("%v: %d events wait after they were repeated", kind, n)
		}
	}
}

// TestGapsAreClosed checks that dropped events are removed from the list when there are many of
// them, and more than of the others. The list of a driver that was far behind gives its room back.
func TestGapsAreClosed(t *testing.T) {
	event := func(n uint32) *abi.AsyncEvent { return &abi.AsyncEvent{Type: abi.EventQPFatal, Number: n} }
	for _, c := range []struct{ events, gone, left int }{
		{300, maxBehind, 300},    // not many
		{300, maxBehind + 1, 43}, // many
		{1000, 500, 1000},        // half of them
		{1000, 501, 499},         // more than half
		{maxBehind + 1, maxBehind, maxBehind + 1},
		{maxBehind + 1, maxBehind + 1, 0},
	} {
		var s EventStore
		for n := range uint32(c.events) {
			s.AsyncEvent(event(n))
		}
		for n := range uint32(c.gone) {
			s.Gone(abi.ObjectQP, n)
		}
		if len(s.async) != c.left || s.Waiting() != c.events-c.gone {
			t.Errorf("%d of %d are gone: a list of %d, want %d; %d wait", c.gone, c.events, len(s.async), c.left, s.Waiting())
		}
	}
	var s EventStore
	for n := range uint32(8 * maxBehind) {
		s.AsyncEvent(event(n))
	}
	if s.Taken(); cap(s.async) > 4*maxBehind || !s.Empty() {
		t.Errorf("room for %d events is kept", cap(s.async))
	}
	for n := range uint32(10) {
		s.AsyncEvent(event(n))
	}
	if s.Taken(); cap(s.async) < 10 {
		t.Error("no room is kept")
	}
}

// TestEmptyStore checks that a store with completion events alone is not empty.
func TestEmptyStore(t *testing.T) {
	var s EventStore
	s.CQEvent(4)
	if s.Empty() || s.Waiting() != 0 {
		t.Error("completion events are nothing, or others")
	}
	s.AsyncEvent(&abi.AsyncEvent{Type: abi.EventLinkState})
	if s.Forget(); !s.Empty() || len(s.CQs()) != 0 || len(s.Async()) != 0 {
		t.Error("something is left")
	}
}

// TestCountEndsAtTheMost checks that the count of a violation stops at its largest value.
func TestCountEndsAtTheMost(t *testing.T) {
	var l Violations
	v := &abi.Violation{Clause: 801}
	l.Note(0, v)
	l.list[0].Count = math.MaxUint32 - 1
	for range 3 {
		if l.Note(0, v); l.list[0].Count != math.MaxUint32 {
			t.Errorf("counted %d", l.list[0].Count)
		}
	}
}

// TestWhatIsTheSameViolation checks that violations of the same clause at the same queue of the
// same ring are merged.
func TestWhatIsTheSameViolation(t *testing.T) {
	var l Violations
	for _, c := range []struct {
		v     abi.Violation
		first bool
	}{
		{abi.Violation{Clause: 1, Ring: abi.RingAdmin, Queue: 1}, true},
		{abi.Violation{Clause: 2, Ring: abi.RingAdmin, Queue: 1}, true},
		{abi.Violation{Clause: 1, Ring: abi.RingStream, Queue: 1}, true},
		{abi.Violation{Clause: 1, Ring: abi.RingAdmin, Queue: 2}, true},
		{abi.Violation{Clause: 1, Ring: abi.RingAdmin, Queue: 1, Index: 7}, false},
	} {
		if first := l.Note(0, &c.v); first != c.first {
			t.Errorf("%+v: first %v", c.v, first)
		}
	}
	if n := len(l.All()); n != 4 {
		t.Errorf("%d are kept", n)
	}
	if _, ok := l.Newest(4); ok {
		t.Error("there is one more")
	}
	if _, ok := l.Newest(3); !ok {
		t.Error("the oldest is not there")
	}
}

package guest

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestANewerEventReplacesAWaitingOne checks that of two events of one type about one object the
// later one is kept, and that events about connections are not merged. (DEV-205)
func TestANewerEventReplacesAWaitingOne(t *testing.T) {
	var s EventStore
	for i, e := range []abi.AsyncEvent{
		{Type: abi.EventLinkState, Status: 0},
		{Type: abi.EventQPFatal, Number: 7, Status: 1},
		{Type: abi.EventConnectRequest, Number: 9},
		{Type: abi.EventQPFatal, Number: 8, Status: 2},
		{Type: abi.EventLinkState, Status: 1},
		{Type: abi.EventQPFatal, Number: 7, Status: 3},
		{Type: abi.EventLastWQE, Number: 7},
		{Type: abi.EventConnectRequest, Number: 9, Status: 5},
	} {
		e.Service = uint64(i)
		s.AsyncEvent(&e)
	}
	want := []uint64{4, 5, 2, 3, 6, 7}
	got := s.Async()
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i := range want {
		if got[i].Service != want[i] {
			t.Errorf("event %d: %+v", i, got[i])
		}
	}
	if s.Taken(); !s.Empty() {
		t.Error("something is left")
	}
	s.AsyncEvent(&abi.AsyncEvent{Type: abi.EventQPFatal, Number: 7})
	if s.Waiting() != 1 {
		t.Error("an event that was taken stands for a later one")
	}
}

// TestEventsGoWithTheirObject checks that the events about an object are dropped when it is
// destroyed, so that a driver which creates and destroys objects and takes no events has no more
// events waiting than it has objects. (DEV-211)
func TestEventsGoWithTheirObject(t *testing.T) {
	var s EventStore
	s.AsyncEvent(&abi.AsyncEvent{Type: abi.EventDisconnected, Number: 5})
	s.AsyncEvent(&abi.AsyncEvent{Type: abi.EventCQError, Number: 5})
	for n := range uint32(100_000) {
		s.AsyncEvent(&abi.AsyncEvent{Type: abi.EventQPFatal, Number: n})
		s.AsyncEvent(&abi.AsyncEvent{Type: abi.EventLastWQE, Number: n})
		if n >= 10 {
			s.DropObject(abi.ObjectQP, n-10)
		}
		if len(s.async) > 4*maxBehind || s.Waiting() > 2+2*11 {
			t.Fatalf("%d events for 10 queue pairs, in a list of %d", s.Waiting(), len(s.async))
		}
	}
	s.DropObject(abi.ObjectSRQ, 5)
	if n := s.Waiting(); n != 2+2*10 {
		t.Errorf("%d events", n)
	}
	got := s.Async()
	if got[0].Type != abi.EventDisconnected || got[1].Type != abi.EventCQError || got[2].Number != 99_990 || got[21].Number != 99_999 {
		t.Errorf("%+v", got)
	}
	s.AsyncEvent(&abi.AsyncEvent{Type: abi.EventQPFatal, Number: 99_999, Status: 4})
	if got = s.Async(); len(got) != 22 || got[20].Status != 4 {
		t.Errorf("merged into the wrong one: %+v", got[20])
	}
}

// TestEventsOfEveryKindGoWithTheirObject checks that destroying an object drops all events about
// it, and none about objects of other kinds with the same number.
func TestEventsOfEveryKindGoWithTheirObject(t *testing.T) {
	all := []abi.EventType{
		abi.EventQPFatal, abi.EventQPReqErr, abi.EventQPAccessErr, abi.EventCommEst, abi.EventSQDrained, abi.EventLastWQE,
		abi.EventCQError, abi.EventSRQLimit, abi.EventSRQError, abi.EventFunctionState, abi.EventConnectRequest,
	}
	for kind, gone := range map[abi.Object]int{abi.ObjectQP: 6, abi.ObjectCQ: 1, abi.ObjectSRQ: 2, abi.ObjectMR: 0} {
		var s EventStore
		if s.DropObject(kind, 3); !s.Empty() {
			t.Error("an empty store has something")
		}
		for _, typ := range all {
			for n := range uint32(3) {
				s.AsyncEvent(&abi.AsyncEvent{Type: typ, Number: n + 2})
			}
		}
		s.DropObject(kind, 3)
		s.DropObject(kind, 3)
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

// TestDroppedEventsTakeNoRoom checks that dropped events are removed from the list when there are
// many of them, and more than of the others. The list of a driver that was far behind gives its
// room back.
func TestDroppedEventsTakeNoRoom(t *testing.T) {
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
			s.DropObject(abi.ObjectQP, n)
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

// TestAStoreWithCompletionEventsIsNotEmpty checks that a store with completion events alone is not
// empty.
func TestAStoreWithCompletionEventsIsNotEmpty(t *testing.T) {
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

// TestACQIsInTheSetOnce checks that numbers of all generations are held once, in order, and can be
// added again after they were taken.
func TestACQIsInTheSetOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var s cqSet
	for range 50 {
		var want []uint32
		seen := map[uint32]bool{}
		for range r.IntN(2000) {
			n := r.Uint32N(500) | r.Uint32()&0xff000000
			if r.IntN(100) == 0 {
				n = 0xffffffff // abi.AdminCQ
			}
			if s.add(n); !seen[n] {
				want = append(want, n)
			}
			seen[n] = true
		}
		if !slices.Equal(s.list, want) {
			t.Fatalf("%d numbers, want %d", len(s.list), len(want))
		}
		if s.drop(s.len()); s.len() != 0 || len(s.pages) > maxPages {
			t.Fatalf("%d numbers and %d pages after all were taken", s.len(), len(s.pages))
		}
	}
	for n := range uint32(1 << 20) { // would take minutes with a linear search
		s.add(n)
		s.add(n)
	}
	if s.len() != 1<<20 {
		t.Errorf("%d numbers", s.len())
	}
}

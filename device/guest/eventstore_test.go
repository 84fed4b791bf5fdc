package guest

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestEventsMerge checks that of two events of one type about one object the later one is kept, and
// that events about connections are not merged. (DEV-205)
func TestEventsMerge(t *testing.T) {
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

// TestEventsGo checks that the events about an object are dropped when it is destroyed, so that a
// driver which creates and destroys objects and takes no events has no more events waiting than it
// has objects. (DEV-211)
func TestEventsGo(t *testing.T) {
	var s EventStore
	s.AsyncEvent(&abi.AsyncEvent{Type: abi.EventDisconnected, Number: 5})
	s.AsyncEvent(&abi.AsyncEvent{Type: abi.EventCQError, Number: 5})
	for n := range uint32(100_000) {
		s.AsyncEvent(&abi.AsyncEvent{Type: abi.EventQPFatal, Number: n})
		s.AsyncEvent(&abi.AsyncEvent{Type: abi.EventLastWQE, Number: n})
		if n >= 10 {
			s.Gone(abi.ObjectQP, n-10)
		}
		if len(s.async) > 4*maxBehind || s.Waiting() > 2+2*11 {
			t.Fatalf("%d events for 10 queue pairs, in a list of %d", s.Waiting(), len(s.async))
		}
	}
	s.Gone(abi.ObjectSRQ, 5)
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

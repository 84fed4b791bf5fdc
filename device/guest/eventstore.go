package guest

import "github.com/falcon-vnic/vnic/queues/abi"

// maxAsyncEvents bounds what waits for a driver that does not take its events; further ones are
// dropped and counted.
const maxAsyncEvents = 256

// EventStore holds the events that a driver has not taken yet: completion events as a set of CQ
// numbers, the others in order. Channels have one each.
type EventStore struct {
	cqs     cqSet
	async   []abi.AsyncEvent
	dropped uint64
}

// CQEvent adds a completion queue, if it is not there.
func (s *EventStore) CQEvent(cqn uint32) { s.cqs.add(cqn) }

// AsyncEvent adds an event. It reports false when there is no room.
func (s *EventStore) AsyncEvent(e *abi.AsyncEvent) (taken bool) {
	if len(s.async) >= maxAsyncEvents {
		s.dropped++
		return false
	}
	s.async = append(s.async, *e)
	return true
}

// Forget drops all events.
func (s *EventStore) Forget() { s.Taken() }

// Dropped counts the events for which there was no room.
func (s *EventStore) Dropped() uint64 { return s.dropped }

// CQs are the completion queues that have news, in order, until the next change.
func (s *EventStore) CQs() []uint32 { return s.cqs.list }

// Async are the other events, in order, until the next change.
func (s *EventStore) Async() []abi.AsyncEvent { return s.async }

// Taken says that the driver has all events.
func (s *EventStore) Taken() {
	s.cqs.drop(s.cqs.len())
	s.async = s.async[:0]
}

// Empty reports whether the driver has all events.
func (s *EventStore) Empty() bool { return s.cqs.len()+len(s.async) == 0 }

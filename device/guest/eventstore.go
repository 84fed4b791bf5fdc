package guest

import (
	"slices"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// maxBehind is how many events may wait for a driver before it gets no further connections.
const maxBehind = 256

// EventStore holds the events that a driver has not taken yet: completion events as a set of CQ
// numbers, the others in order. Channels have one each. No event is lost, and what waits is bounded
// all the same: an event about an object or the function that is there already is replaced by the
// newer one, those about an object go with it, and a driver that is behind gets no connections,
// whose events are about one each (DEV-211).
type EventStore struct {
	cqs   cqSet
	async []abi.AsyncEvent // of Type 0: gone
	at    map[eventKey]int // index of those about objects and the function
	gone  int              // of async
}

// eventKey is what an event says of which object.
type eventKey struct {
	typ    abi.EventType
	number uint32
}

// eventsAbout are those of one object, by its kind.
var eventsAbout = map[abi.Object][]abi.EventType{
	abi.ObjectQP: {
		abi.EventQPFatal, abi.EventQPReqErr, abi.EventQPAccessErr, abi.EventCommEst, abi.EventSQDrained, abi.EventLastWQE,
	},
	abi.ObjectCQ:  {abi.EventCQError},
	abi.ObjectSRQ: {abi.EventSRQLimit, abi.EventSRQError},
}

// aboutConnection are the events of which each says something new.
var aboutConnection = []abi.EventType{
	abi.EventConnectRequest, abi.EventEstablished, abi.EventRejected, abi.EventUnreachable, abi.EventDisconnected,
}

// CQEvent adds a completion queue, if it is not there.
func (s *EventStore) CQEvent(cqn uint32) { s.cqs.add(cqn) }

// AsyncEvent adds an event, or replaces an older one that says the same of the same object.
func (s *EventStore) AsyncEvent(e *abi.AsyncEvent) {
	if !slices.Contains(aboutConnection, e.Type) {
		key := eventKey{e.Type, e.Number}
		if i, waits := s.at[key]; waits {
			s.async[i] = *e
			return
		}
		if s.at == nil {
			s.at = map[eventKey]int{}
		}
		s.at[key] = len(s.async)
	}
	s.async = append(s.async, *e)
}

// Gone drops the events about an object, which is destroyed.
func (s *EventStore) Gone(kind abi.Object, number uint32) {
	if len(s.at) == 0 {
		return
	}
	for _, typ := range eventsAbout[kind] {
		key := eventKey{typ, number}
		if i, waits := s.at[key]; waits {
			s.async[i] = abi.AsyncEvent{}
			delete(s.at, key)
			s.gone++
		}
	}
	if s.gone > maxBehind && s.gone > len(s.async)/2 {
		s.compact()
	}
}

// compact closes the gaps.
func (s *EventStore) compact() {
	if s.gone == 0 {
		return
	}
	kept := s.async[:0]
	for i := range s.async {
		e := &s.async[i]
		if e.Type == 0 {
			continue
		}
		if key := (eventKey{e.Type, e.Number}); !slices.Contains(aboutConnection, e.Type) {
			s.at[key] = len(kept)
		}
		kept = append(kept, *e)
	}
	s.async, s.gone = kept, 0
}

// Forget drops all events.
func (s *EventStore) Forget() { s.Taken() }

// Waiting is how many events but those of completion queues the driver has not taken.
func (s *EventStore) Waiting() int { return len(s.async) - s.gone }

// CQs are the completion queues that have news, in order, until the next change.
func (s *EventStore) CQs() []uint32 { return s.cqs.list }

// Async are the other events, in order, until the next change.
func (s *EventStore) Async() []abi.AsyncEvent {
	s.compact()
	return s.async
}

// Taken says that the driver has all events.
func (s *EventStore) Taken() {
	s.cqs.drop(s.cqs.len())
	if cap(s.async) > 4*maxBehind { // a driver that was far behind
		s.async = nil
	}
	s.async, s.gone = s.async[:0], 0
	clear(s.at)
}

// Empty reports whether the driver has all events.
func (s *EventStore) Empty() bool { return s.cqs.len()+s.Waiting() == 0 }

package guest

import (
	"slices"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// maxBehind is the number of waiting events at which a driver gets no further connections.
const maxBehind = 256

// EventStore holds the events that a driver has not taken yet: completion events as a set of CQ
// numbers, the others in order. Each channel has one. No event is lost, and still the number of
// waiting events is bounded: a newer event replaces a waiting one of the same type about the same
// object or the function, the events about an object are dropped when it is destroyed, and a driver
// that is behind gets no further connections, because their events are not merged (DEV-211).
type EventStore struct {
	cqs   cqSet
	async []abi.AsyncEvent // Type 0 marks a dropped event
	at    map[eventKey]int // index in async of the events about objects and the function
	gone  int              // number of dropped events in async
}

// eventKey identifies an event by its type and object.
type eventKey struct {
	typ    abi.EventType
	number uint32
}

// eventsAbout lists the types of events about one object, by the kind of object.
var eventsAbout = map[abi.Object][]abi.EventType{
	abi.ObjectQP: {
		abi.EventQPFatal, abi.EventQPReqErr, abi.EventQPAccessErr, abi.EventCommEst, abi.EventSQDrained, abi.EventLastWQE,
	},
	abi.ObjectCQ:  {abi.EventCQError},
	abi.ObjectSRQ: {abi.EventSRQLimit, abi.EventSRQError},
}

// aboutConnection lists the types of events that are never merged.
var aboutConnection = []abi.EventType{
	abi.EventConnectRequest, abi.EventEstablished, abi.EventRejected, abi.EventUnreachable, abi.EventDisconnected,
}

// CQEvent adds a completion queue, if it is not waiting already.
func (s *EventStore) CQEvent(cqn uint32) { s.cqs.add(cqn) }

// AsyncEvent adds an event, or replaces a waiting one of the same type about the same object.
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

// DropObject drops the events about an object that was destroyed.
func (s *EventStore) DropObject(kind abi.Object, number uint32) {
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

// compact removes dropped events from async.
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

// Waiting returns the number of waiting events, without those of completion queues.
func (s *EventStore) Waiting() int { return len(s.async) - s.gone }

// CQs returns the completion queues that have events, in order. It is valid until the next change.
func (s *EventStore) CQs() []uint32 { return s.cqs.list }

// Async returns the other events, in order. It is valid until the next change.
func (s *EventStore) Async() []abi.AsyncEvent {
	s.compact()
	return s.async
}

// Taken removes all events: the driver has them.
func (s *EventStore) Taken() {
	s.cqs.drop(s.cqs.len())
	if cap(s.async) > 4*maxBehind { // the driver was far behind
		s.async = nil
	}
	s.async, s.gone = s.async[:0], 0
	clear(s.at)
}

// Empty reports whether no events wait.
func (s *EventStore) Empty() bool { return s.cqs.len()+s.Waiting() == 0 }

// cqSet is a set of completion queue numbers, in the order in which they were added. Membership is
// a bitmap in pages: a number has a slot in its low bits and a generation in its high bits, so the
// pages are few and dense.
type cqSet struct {
	list  []uint32
	pages map[uint32]*cqPage
}

type cqPage [pageCQs / 64]uint64

const (
	pageCQs  = 1 << 12
	maxPages = 64 // pages that an empty set keeps
)

func (s *cqSet) len() int { return len(s.list) }

// add adds a number, if it is not in the set.
func (s *cqSet) add(n uint32) {
	p := s.pages[n/pageCQs]
	if p == nil {
		if s.pages == nil {
			s.pages = map[uint32]*cqPage{}
		}
		p = &cqPage{}
		s.pages[n/pageCQs] = p
	}
	word, bit := &p[n%pageCQs/64], uint64(1)<<(n%64)
	if *word&bit == 0 {
		*word |= bit
		s.list = append(s.list, n)
	}
}

// drop removes the first n numbers.
func (s *cqSet) drop(n int) {
	for _, cqn := range s.list[:n] {
		s.pages[cqn/pageCQs][cqn%pageCQs/64] &^= 1 << (cqn % 64)
	}
	s.list = s.list[:copy(s.list, s.list[n:])]
	if len(s.list) == 0 && len(s.pages) > maxPages {
		clear(s.pages)
	}
}

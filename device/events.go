package device

import (
	"fmt"
	"slices"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// eventQueue carries CQ events of one function to one interrupt vector of its
// guest. Records are made visible, and the vector raised, once at the end of a
// Step, and raised only when the driver asked for it by the event index: as many
// interrupts as the driver takes, and no storm of them.
type eventQueue struct {
	ring   *ring.Producer
	vector int
	irq    queues.Interrupter
	fn     *function
	record [abi.WindowEventSize]byte // what goes through an interface must not be made per call
	cqs    int                       // that have their events here
	dirty  bool                      // in the shard's list
}

// cqEvent is a CQ whose events go to an event queue.
type cqEvent struct {
	queue  *eventQueue
	posted bool   // at least one
	last   uint32 // index of the last record
}

var eventLayout = ring.QueueLayout(abi.WindowEventsLog2, 3)

// openEventQueues makes the function's event queues, if the session has a window
// with some and the driver can use them.
func (f *function) openEventQueues(b *binding, q queues.Bell) {
	irq, ok := q.(queues.Interrupter)
	if !ok || b.features&abi.FeatureVectors == 0 {
		return
	}
	for i, mem := range irq.EventQueues() {
		b.events = append(b.events, &eventQueue{ring: ring.NewProducer(mem, eventLayout), vector: i, irq: irq, fn: f})
	}
}

// eventQueue finds the event queue that a new CQ wants; nil is none.
func (f *function) eventQueue(vector uint16) (*eventQueue, abi.Status) {
	switch {
	case vector == 0:
		return nil, abi.StatusOK
	case int(vector) > len(f.binding.events):
		return nil, abi.StatusInvalidArgument
	}
	q := f.binding.events[vector-1]
	if q.cqs >= 1<<abi.WindowEventsLog2 {
		return nil, abi.StatusNoResources
	}
	return q, abi.StatusOK
}

// createCQ is the admin command.
func (f *function) createCQ(c *abi.CreateCQ) (cqn uint32, st abi.Status) {
	q, st := f.eventQueue(c.Vector)
	if st != abi.StatusOK {
		return 0, st
	}
	cqn, st = f.verbs.CreateCQ(c)
	if st == abi.StatusOK && q != nil {
		q.cqs++
		if f.cqEvents == nil {
			f.cqEvents = map[uint32]*cqEvent{}
		}
		f.cqEvents[cqn] = &cqEvent{queue: q}
	}
	return cqn, st
}

// destroyCQ is the admin command.
func (f *function) destroyCQ(cqn uint32) abi.Status {
	st := f.verbs.DestroyCQ(cqn)
	if e := f.cqEvents[cqn]; e != nil && st == abi.StatusOK {
		e.queue.cqs--
		delete(f.cqEvents, cqn)
	}
	return st
}

// forgetEvents ends the use of the event queues by CQs that are gone.
func (f *function) forgetEvents() {
	for _, e := range f.cqEvents {
		e.queue.cqs--
	}
	clear(f.cqEvents)
}

// post adds a record, unless the driver has not taken the last one yet: it will
// look at the CQ when it does.
func (e *cqEvent) post(cqn uint32) {
	q := e.queue
	if e.posted {
		waits, err := q.ring.Pending(e.last)
		if err != nil {
			q.fault(err)
			return
		}
		if waits {
			return
		}
	}
	(&abi.WindowEvent{CQN: cqn}).Marshal(q.record[:])
	index := q.ring.Next()
	if err := q.ring.Push(q.record[:]); err != nil {
		q.fault(err)
		return
	}
	e.posted, e.last = true, index
	if !q.dirty {
		q.dirty = true
		q.fn.shard.events = append(q.fn.shard.events, q)
	}
}

func (q *eventQueue) fault(err error) {
	q.fn.broke(1010, abi.RingEvents, uint32(q.vector)+1, q.ring.Next(), nil)
	q.fn.Fault(abi.FaultRing, fmt.Sprintf("event queue %d: %v; only the driver writes its consumer index, forwards, and it must take the records of CQs it destroyed", q.vector+1, err))
}

// dropEvents forgets what a session's event queues have still to show.
func (s *Shard) dropEvents(b *binding) {
	s.events = slices.DeleteFunc(s.events, func(q *eventQueue) bool { return slices.Contains(b.events, q) })
}

// raiseInterrupts shows the drivers the events of this Step.
func (s *Shard) raiseInterrupts() {
	for _, q := range s.events {
		q.dirty = false
		_, wanted, err := q.ring.Publish()
		switch {
		case err != nil:
			q.fault(err)
		case wanted:
			q.irq.Interrupt(q.vector)
			s.counters.interrupts++
		}
	}
	s.events = s.events[:0]
}

package guest

import (
	"slices"

	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// CQEvent implements verbs.Notifier.
func (f *Device) CQEvent(cqn uint32) {
	if in := f.Faults.in; in == nil || !in.cqEvent(cqn) {
		f.sendCQ(cqn)
	}
}

func (f *Device) sendCQ(cqn uint32) {
	if !f.byCQ.Post(cqn) && f.driver != nil {
		f.driver.cqEvent(cqn)
	}
}

// AsyncEvent implements verbs.Notifier.
func (f *Device) AsyncEvent(typ abi.EventType, number, status uint32, reason string) {
	f.Notify(&abi.AsyncEvent{Type: typ, Number: number, Status: status}, reason)
}

// Notify sends an event with a text, which is cut to the room in the event, or with private data.
func (f *Device) Notify(ev *abi.AsyncEvent, priv string) {
	if f.driver == nil {
		return
	}
	ev.PrivLen = uint16(copy(ev.Priv[:], abi.Shorten(priv, len(ev.Priv))))
	if in := f.Faults.in; in == nil || !in.asyncEvent(ev) {
		f.sendAsync(ev)
	}
}

func (f *Device) sendAsync(ev *abi.AsyncEvent) {
	if f.driver != nil {
		f.driver.asyncEvent(ev)
	}
}

// Behind implements conn.Driver: it reports whether so many events wait for the driver that it may
// not have another connection now (DEV-211).
func (f *Device) Behind() bool {
	if f.driver == nil || f.driver.Channel.Untaken() < maxBehind {
		return false
	}
	f.refusedBehind++
	f.Broke(abi.DRV205, abi.RingStream, 0, 0, nil)
	return true
}

// gone drops the waiting events about an object that was destroyed.
func (f *Device) gone(kind abi.Object, number uint32) {
	if f.driver != nil {
		f.driver.Channel.DropObject(kind, number)
	}
}

// forget drops the waiting events: their objects are gone.
func (f *Device) forget() {
	if f.driver != nil {
		f.driver.Channel.Forget()
	}
}

// knows reports whether there is a driver that uses a feature.
func (f *Device) knows(feature uint64) bool {
	return f.driver != nil && f.driver.Features&feature != 0
}

// TellState tells the driver the function's state after a change that the driver did not make.
func (f *Device) TellState(reason string) {
	if f.knows(abi.FeatureFunctionEvents) {
		f.Notify(&abi.AsyncEvent{Type: abi.EventFunctionState, Number: uint32(f.ID), Status: uint32(f.Lifecycle.State())}, reason)
	}
}

// TellLink tells the driver that its link went up or down.
func (f *Device) TellLink() {
	if !f.knows(abi.FeatureFunctionEvents) {
		return
	}
	ev := abi.AsyncEvent{Type: abi.EventLinkState}
	if f.LinkUp {
		ev.Status = 1
	}
	f.Notify(&ev, "")
}

// EventQueue carries CQ events of one function to one interrupt vector of its guest. At the end of
// a Step it makes the new records visible and raises the vector once, and only if the driver asked
// for it by the event index. So a driver gets no more interrupts than it can handle.
type EventQueue struct {
	ring   *ring.Producer
	vector int
	irq    queues.Interrupter
	shown  *EventQueues
	user   EventUser
	record [abi.WindowEventSize]byte // a field, so that it is not allocated per call
	cqs    int                       // number of CQs whose events go here
	dirty  bool                      // listed in shown.dirty
}

// EventUser is the driver that owns event queues.
type EventUser interface {
	// BrokeEvents records that the driver broke the rules of its event queue number vector+1. index
	// is that of the queue's next record.
	BrokeEvents(vector int, index uint32, err error)
}

var eventLayout = ring.QueueLayout(abi.WindowEventsLog2, 3)

// EventQueues holds the event queues of a shard that have records to show.
type EventQueues struct {
	dirty  []*EventQueue
	Raised uint64 // number of interrupts raised
}

// Open returns new event queues for a driver, one per vector.
func (s *EventQueues) Open(user EventUser, irq queues.Interrupter) (all []*EventQueue) {
	for i, mem := range irq.EventQueues() {
		all = append(all, &EventQueue{ring: ring.NewProducer(mem, eventLayout), vector: i, irq: irq, shown: s, user: user})
	}
	return all
}

// Drop forgets the unshown records of a driver that leaves. of holds the driver's event queues.
func (s *EventQueues) Drop(of []*EventQueue) {
	s.dirty = slices.DeleteFunc(s.dirty, func(q *EventQueue) bool { return slices.Contains(of, q) })
}

// Show makes the records of this Step visible to the drivers. It adds the interrupts that they
// asked for to out.
func (s *EventQueues) Show(out *effect.List) {
	for _, q := range s.dirty {
		q.dirty = false
		_, wanted, err := q.ring.Publish()
		switch {
		case err != nil:
			q.fault(err)
		case wanted:
			out.Add(q)
			s.Raised++
		}
	}
	s.dirty = s.dirty[:0]
}

// Do implements effect.Effect: it raises the vector.
func (q *EventQueue) Do() { q.irq.Interrupt(q.vector) }

// full reports whether the queue has no room for the events of another CQ: it has one record for
// each.
func (q *EventQueue) full() bool { return q.cqs >= 1<<abi.WindowEventsLog2 }

func (q *EventQueue) fault(err error) { q.user.BrokeEvents(q.vector, q.ring.Next(), err) }

// CQEvents maps the completion queues of a function to the event queues that their events go to.
type CQEvents struct {
	byCQ map[uint32]*cqEvent // only CQs that have a vector
}

// cqEvent is a CQ whose events go to an event queue.
type cqEvent struct {
	queue  *EventQueue
	posted bool   // at least one record was posted
	last   uint32 // index of the last record
}

// Choose returns the event queue for a new CQ's vector. Vector 0 means none.
func Choose(from []*EventQueue, vector uint16) (*EventQueue, abi.Status) {
	switch {
	case vector == 0:
		return nil, abi.StatusOK
	case int(vector) > len(from):
		return nil, abi.StatusInvalidArgument
	}
	q := from[vector-1]
	if q.full() {
		return nil, abi.StatusNoResources
	}
	return q, abi.StatusOK
}

// Add directs the events of a CQ to q.
func (c *CQEvents) Add(cqn uint32, q *EventQueue) {
	q.cqs++
	if c.byCQ == nil {
		c.byCQ = map[uint32]*cqEvent{}
	}
	c.byCQ[cqn] = &cqEvent{queue: q}
}

// Remove removes a CQ that was destroyed.
func (c *CQEvents) Remove(cqn uint32) {
	if e := c.byCQ[cqn]; e != nil {
		e.queue.cqs--
		delete(c.byCQ, cqn)
	}
}

// Clear removes all CQs.
func (c *CQEvents) Clear() {
	for _, e := range c.byCQ {
		e.queue.cqs--
	}
	clear(c.byCQ)
}

// Post adds a record for a CQ, unless the driver has not taken the last one yet: it will look at
// the CQ when it takes that. It returns false for a CQ without an event queue.
func (c *CQEvents) Post(cqn uint32) bool {
	e := c.byCQ[cqn]
	if e != nil {
		e.post(cqn)
	}
	return e != nil
}

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
		q.shown.dirty = append(q.shown.dirty, q)
	}
}

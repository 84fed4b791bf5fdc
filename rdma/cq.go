package rdma

import (
	"errors"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// CQ is a completion queue in guest memory: entries with a phase bit that flips with every pass,
// starting at 1.
type CQ struct {
	fn       *Function
	number   uint32
	area     *queues.Area
	ring     *ring.CQWriter
	notified uint32 // index after the last solicited or failed completion
	armed    armState
	failed   bool // overflowed: writes nothing any more
	resized  bool // indices of an older area may still be on their way
	users    int  // send and receive queues using it

	// Moderation: an event waits for count completions, but not longer than period.
	count  uint32
	period falcon.Time
	held   uint32 // completions since the one that an event is due for, that one included; 0: none is due
	timer  timer

	waiting []heldCQE // that Faults keep back
}

type armState uint8

const (
	disarmed armState = iota
	armedSolicited
	armedNext
)

// checkCQ checks the size of a completion queue.
func (f *Function) checkCQ(log2Entries uint8) abi.Status {
	switch {
	case log2Entries < 1:
		return abi.StatusInvalidArgument
	case log2Entries > abi.MaxQueueLog2 || 1<<log2Entries > f.limits.CQEntries:
		return abi.StatusTooLarge
	}
	return abi.StatusOK
}

// CreateCQ makes a completion queue over a page list.
func (f *Function) CreateCQ(c *abi.CreateCQ) (cqn uint32, st abi.Status) {
	if !f.working() {
		return 0, abi.StatusBadState
	}
	if st := f.checkCQ(c.Log2Entries); st != abi.StatusOK {
		return 0, st
	}
	if f.cqs.inUse >= f.cqs.limit {
		return 0, abi.StatusNoResources
	}
	layout := ring.CQLayout(c.Log2Entries)
	area, st := f.area(c.Pages, c.Levels, 0, layout.Size())
	if st != abi.StatusOK {
		return 0, st
	}
	q := &CQ{fn: f, area: area, ring: ring.NewCQWriter(area, layout)}
	q.number, _ = f.cqs.add(q)
	f.zero(abi.DRV701, abi.RingCQ, q.number, area, layout.Size())
	return q.number, abi.StatusOK
}

// DestroyCQ destroys a completion queue; StatusBusy while a QP uses it.
func (f *Function) DestroyCQ(cqn uint32) abi.Status {
	c := f.cqs.get(cqn)
	switch {
	case c == nil:
		return abi.StatusNotFound
	case c.users > 0:
		return abi.StatusBusy
	}
	c.stop()
	f.cqs.remove(cqn)
	return abi.StatusOK
}

// ResizeCQ moves a completion queue to another area, where it starts anew. What was written stays
// where it is: the driver takes it first. An arming in the old area cannot be seen any more and is
// served with an event.
func (f *Function) ResizeCQ(r *abi.ResizeCQ) abi.Status {
	if !f.working() {
		return abi.StatusBadState
	}
	c := f.cqs.get(r.CQN)
	switch {
	case c == nil:
		return abi.StatusNotFound
	case c.failed:
		return abi.StatusBadState
	}
	if st := f.checkCQ(r.Log2Entries); st != abi.StatusOK {
		return st
	}
	layout := ring.CQLayout(r.Log2Entries)
	area, st := f.area(r.Pages, r.Levels, 0, layout.Size())
	if st != abi.StatusOK {
		return st
	}
	c.stop()
	c.area, c.ring, c.notified, c.armed, c.resized = area, ring.NewCQWriter(area, layout), 0, disarmed, true
	f.zero(abi.DRV701, abi.RingCQ, c.number, area, layout.Size())
	f.out.CQEvent(c.number)
	return abi.StatusOK
}

// ModifyCQ sets the moderation of a completion queue.
func (f *Function) ModifyCQ(m *abi.ModifyCQ) abi.Status {
	if !f.working() {
		return abi.StatusBadState
	}
	c := f.cqs.get(m.CQN)
	if c == nil {
		return abi.StatusNotFound
	}
	c.count, c.period = uint32(m.Count), falcon.Time(m.Period)*1000
	if c.held > 0 {
		c.raise()
	}
	return abi.StatusOK
}

// moderate sends the event that wanted says is due, or holds it back for more completions. It is
// called for each one.
func (c *CQ) moderate(now falcon.Time, wanted bool) {
	switch {
	case c.held == 0 && !wanted:
		return
	case c.count <= 1 || c.period == 0:
		c.raise()
		return
	}
	c.held++
	switch {
	case c.held >= c.count:
		c.raise()
	case c.held == 1:
		c.fn.e.timers.set(&c.timer, c, now+c.period)
	}
}

// due ends the wait for more completions.
func (c *CQ) due(falcon.Time) { c.raise() }

// raise sends an event.
func (c *CQ) raise() {
	c.stop()
	if c.fn.trace != nil {
		c.fn.trace.Add(&trace.Event{Kind: trace.Signalled, Extra: c.number})
	}
	c.fn.out.CQEvent(c.number)
}

// stop forgets an event that is due.
func (c *CQ) stop() {
	c.held = 0
	c.fn.e.timers.stop(&c.timer)
}

// post writes one completion; cqe.Timestamp is set here. A full queue fails: an event, no entry,
// and its QPs move to ERR.
func (c *CQ) post(now falcon.Time, cqe *abi.CQE, solicited bool) {
	if c.fn.faults != nil && c.hold(now, cqe, solicited) {
		return
	}
	c.put(now, cqe, solicited)
}

// put is post for a completion that does not wait.
func (c *CQ) put(now falcon.Time, cqe *abi.CQE, solicited bool) {
	f := c.fn
	if c.failed || !f.working() {
		return
	}
	cqe.Timestamp = uint64(now)
	if solicited && f.armWord {
		cqe.Flags |= abi.WCFlagSolicited
	}
	b := f.e.cqe[:]
	cqe.Marshal(b)
	err := c.ring.Write(b)
	if err == nil {
		err = c.ring.Commit()
	}
	if err != nil {
		c.fail(err)
		return
	}
	f.stats.Completed++
	switch cqe.Status {
	case abi.WCSuccess:
	case abi.WCWRFlushErr:
		f.stats.Flushed++
		solicited = true
	default:
		f.stats.Errors++
		solicited = true
	}
	if solicited {
		c.notified = c.ring.Next()
	}
	wanted := c.armed == armedNext || c.armed == armedSolicited && solicited
	if wanted {
		c.armed = disarmed
	}
	if f.armWord {
		byWord, err := c.ring.Wanted(solicited)
		if err != nil {
			c.fail(err)
			return
		}
		wanted = wanted || byWord
		if f.strict {
			if index, ahead := c.ring.ArmedAhead(); ahead {
				f.broke(abi.DRV709, abi.RingCQ, c.number, index, word(index))
			}
		}
	}
	if f.trace != nil {
		c.noteCQE(cqe.Status, wanted || c.held > 0)
	}
	c.moderate(now, wanted)
}

// broken reports whether the queue failed. QPs without one have nil.
func (c *CQ) broken() bool { return c != nil && c.failed }

// fail ends the queue, or for anything but an overflow the function.
func (c *CQ) fail(err error) {
	f := c.fn
	switch {
	case errors.Is(err, ring.ErrFull):
		c.failed = true
		f.dirty = true
		f.stats.CQOverflows++
		f.broke(abi.DRV705, abi.RingCQ, c.number, c.ring.Next(), nil)
		f.event(abi.EventCQError, c.number, uint32(abi.StatusNoResources),
			"completion queue overflowed: poll faster or create it with more entries")
	case errors.Is(err, ring.ErrIndex):
		consumer, _ := c.area.Load32(abi.CQHeaderConsumer)
		f.broke(abi.DRV704, abi.RingCQ, c.number, consumer, word(consumer))
		f.stop(abi.FaultRing, "CQ %#x: the consumer index in memory moved back or past the %d entries written; only the driver writes it, forwards",
			c.number, c.ring.Next())
	default:
		f.broke(abi.DRV402, abi.RingCQ, c.number, c.ring.Next(), nil)
		f.memoryFault("CQ", c.number, err)
	}
}

// armFor asks for one event when there is an entry at or after index, or, with solicitedOnly, such
// an entry that is solicited or failed. Entries already there count, so that none is missed between
// polling and arming. An index far behind is a doorbell that was overtaken, or a coalesced one that
// came late, and costs no more than an early event. So does one ahead where a ResizeCQ overtook it:
// indices of the old area mean nothing any more.
func (c *CQ) armFor(index uint32, solicitedOnly bool) {
	f := c.fn
	next := c.ring.Next()
	if int32(index-next) > 0 && !c.resized {
		f.broke(abi.DRV708, abi.RingCQ, c.number, index, word(index))
		f.stop(abi.FaultDoorbell, "CQ %#x armed at consumer index %d, only %d entries were written; arm at the index of the next entry to poll",
			c.number, index, next)
		return
	}
	if c.failed {
		return
	}
	news := next != index
	want := armedNext
	if solicitedOnly {
		news = int32(c.notified-index) > 0
		want = armedSolicited
	}
	if news {
		c.armed = disarmed
		f.out.CQEvent(c.number)
		return
	}
	c.armed = max(c.armed, want) // a pending request for any entry outranks one for solicited entries
}

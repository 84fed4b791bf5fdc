package rdma

import (
	"errors"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// CQ is a completion queue in guest memory: entries with a phase bit that flips with every pass, starting at 1.
type CQ struct {
	fn       *Function
	number   uint32
	area     *queues.Area
	ring     *ring.CQWriter
	notified uint32 // index after the last solicited or failed completion
	armed    armState
	failed   bool // overflowed: writes nothing any more
	users    int  // send and receive queues using it
}

type armState uint8

const (
	disarmed armState = iota
	armedSolicited
	armedNext
)

// CreateCQ makes a completion queue over a page list.
func (f *Function) CreateCQ(c *abi.CreateCQ) (cqn uint32, st abi.Status) {
	if !f.working() {
		return 0, abi.StatusBadState
	}
	switch {
	case c.Log2Entries < 1:
		return 0, abi.StatusInvalidArgument
	case c.Log2Entries > abi.MaxQueueLog2 || 1<<c.Log2Entries > f.limits.CQEntries:
		return 0, abi.StatusTooLarge
	case f.cqs.inUse >= f.cqs.limit:
		return 0, abi.StatusNoResources
	}
	layout := ring.CQLayout(c.Log2Entries)
	area, st := f.area(c.Pages, c.Levels, 0, layout.Size())
	if st != abi.StatusOK {
		return 0, st
	}
	q := &CQ{fn: f, area: area, ring: ring.NewCQWriter(area, layout)}
	q.number, _ = f.cqs.add(q)
	f.zero(701, abi.RingCQ, q.number, area, layout.Size())
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
	f.cqs.remove(cqn)
	return abi.StatusOK
}

// post writes one completion; cqe.Timestamp is set here. A full queue fails: an event, no entry, and its QPs move to ERR.
func (c *CQ) post(now falcon.Time, cqe *abi.CQE, solicited bool) {
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
				f.broke(709, abi.RingCQ, c.number, index, word(index))
			}
		}
	}
	if wanted {
		f.out.CQEvent(c.number)
	}
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
		f.broke(705, abi.RingCQ, c.number, c.ring.Next(), nil)
		f.event(abi.EventCQError, c.number, uint32(abi.StatusNoResources),
			"completion queue overflowed: poll faster or create it with more entries")
	case errors.Is(err, ring.ErrIndex):
		consumer, _ := c.area.Load32(abi.CQHeaderConsumer)
		f.broke(704, abi.RingCQ, c.number, consumer, word(consumer))
		f.stop(abi.FaultRing, "CQ %#x: the consumer index in memory moved back or past the %d entries written; only the driver writes it, forwards",
			c.number, c.ring.Next())
	default:
		f.broke(402, abi.RingCQ, c.number, c.ring.Next(), nil)
		f.memoryFault("CQ", c.number, err)
	}
}

// armFor asks for one event when there is an entry at or after index, or, with solicitedOnly, such an entry that is
// solicited or failed. Entries already there count, so that none is missed between polling and arming. An index far behind
// is a doorbell that was overtaken, or a coalesced one that came late, and costs no more than an early event.
func (c *CQ) armFor(index uint32, solicitedOnly bool) {
	f := c.fn
	next := c.ring.Next()
	if int32(index-next) > 0 {
		f.broke(708, abi.RingCQ, c.number, index, word(index))
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

package verbs

import (
	"errors"

	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// CQ is a completion queue in guest memory. Its entries have a phase bit that flips with every pass
// and starts at 1.
type CQ struct {
	owner    *Owner
	shared   *Shared
	number   uint32
	area     *queues.Area
	ring     *ring.CQWriter
	notified uint32 // index after the last solicited or failed completion
	armed    armState
	failed   bool // overflowed or broken: nothing is written any more
	resized  bool // the driver may still send indices of an older area
	users    int  // send and receive queues using it

	// Moderation: an event waits for count completions, but not longer than period.
	count  uint32
	period vtime.Time
	held   uint32 // completions since an event became due, the one that made it due included; 0: no event is due
	timer  timer.Handle

	waiting []heldCQE // completions that Faults hold back
}

// CQs holds the completion queues of a function.
type CQs struct {
	owner  *Owner
	shared *Shared
	table  Table[CQ]
}

// CQ returns the completion queue with number cqn, nil if there is none.
func (t *CQs) CQ(cqn uint32) *CQ { return t.table.Get(cqn) }

type armState uint8

const (
	disarmed armState = iota
	armedSolicited
	armedNext
)

// checkSize checks the size of a completion queue.
func (t *CQs) checkSize(log2Entries uint8) abi.Status {
	switch {
	case log2Entries < 1:
		return abi.StatusInvalidArgument
	case log2Entries > abi.MaxQueueLog2 || 1<<log2Entries > t.owner.limits.CQEntries:
		return abi.StatusTooLarge
	}
	return abi.StatusOK
}

// CreateCQ makes a completion queue over a page list.
func (t *CQs) CreateCQ(c *abi.CreateCQ) (cqn uint32, st abi.Status) {
	if !t.owner.Working() {
		return 0, abi.StatusBadState
	}
	if st := t.checkSize(c.Log2Entries); st != abi.StatusOK {
		return 0, st
	}
	if t.table.Full() {
		return 0, abi.StatusNoResources
	}
	layout := ring.CQLayout(c.Log2Entries)
	area, st := t.owner.area(c.Pages, c.Levels, layout.Size())
	if st != abi.StatusOK {
		return 0, st
	}
	q := &CQ{owner: t.owner, shared: t.shared, area: area, ring: ring.NewCQWriter(area, layout)}
	q.number, _ = t.table.Add(q)
	t.owner.zero(abi.DRV701, abi.RingCQ, q.number, area, layout.Size())
	return q.number, abi.StatusOK
}

// DestroyCQ destroys a completion queue. It returns StatusBusy while a QP or SRQ uses the queue.
func (t *CQs) DestroyCQ(cqn uint32) abi.Status {
	c := t.table.Get(cqn)
	switch {
	case c == nil:
		return abi.StatusNotFound
	case c.users > 0:
		return abi.StatusBusy
	}
	c.stop()
	t.table.Remove(cqn)
	return abi.StatusOK
}

// ResizeCQ moves a completion queue to another area, where it starts empty. Completions that were
// written stay in the old area, and the driver polls them first. A request for an event in the old
// area can no longer be seen, so an event is sent.
func (t *CQs) ResizeCQ(r *abi.ResizeCQ) abi.Status {
	if !t.owner.Working() {
		return abi.StatusBadState
	}
	c := t.table.Get(r.CQN)
	switch {
	case c == nil:
		return abi.StatusNotFound
	case c.failed:
		return abi.StatusBadState
	}
	if st := t.checkSize(r.Log2Entries); st != abi.StatusOK {
		return st
	}
	layout := ring.CQLayout(r.Log2Entries)
	switch free, err := c.ring.Look(); {
	case err != nil:
		return abi.StatusBadState // the next completion finds the same error
	case c.ring.Entries()-free > layout.Entries():
		return abi.StatusInvalidArgument
	}
	area, st := t.owner.area(r.Pages, r.Levels, layout.Size())
	if st != abi.StatusOK {
		return st
	}
	c.stop()
	c.area, c.ring, c.notified, c.armed, c.resized = area, ring.NewCQWriter(area, layout), 0, disarmed, true
	t.owner.zero(abi.DRV701, abi.RingCQ, c.number, area, layout.Size())
	t.owner.notifier.CQEvent(c.number)
	return abi.StatusOK
}

// ModifyCQ sets the moderation of a completion queue.
func (t *CQs) ModifyCQ(m *abi.ModifyCQ) abi.Status {
	if !t.owner.Working() {
		return abi.StatusBadState
	}
	c := t.table.Get(m.CQN)
	if c == nil {
		return abi.StatusNotFound
	}
	c.count, c.period = uint32(m.Count), vtime.Time(m.Period)*1000
	if c.held > 0 {
		c.raise()
	}
	return abi.StatusOK
}

// moderate raises the event that wanted says is due, or holds it back for more completions. It is
// called for each completion.
func (c *CQ) moderate(now vtime.Time, wanted bool) {
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
		c.shared.Timers.Set(&c.timer, c, now+c.period)
	}
}

// Due raises the event that waited for more completions.
func (c *CQ) Due(vtime.Time) { c.raise() }

// raise sends an event.
func (c *CQ) raise() {
	c.stop()
	if c.owner.Trace != nil {
		c.owner.Trace.Add(&trace.Event{Kind: trace.Signalled, Extra: c.number})
	}
	c.owner.notifier.CQEvent(c.number)
}

// stop cancels an event that is due.
func (c *CQ) stop() {
	c.held = 0
	c.shared.Timers.Stop(&c.timer)
}

// post writes one completion and sets cqe.Timestamp. If the queue is full, it fails: the driver
// gets an event but no entry, and the queue's QPs move to ERR.
func (c *CQ) post(now vtime.Time, cqe *abi.CQE, solicited bool) {
	if c.owner.faults != nil && c.hold(now, cqe, solicited) {
		return
	}
	c.put(now, cqe, solicited)
}

// put writes a completion that Faults do not hold back.
func (c *CQ) put(now vtime.Time, cqe *abi.CQE, solicited bool) {
	o := c.owner
	if c.failed || !o.Working() {
		return
	}
	if o.faults != nil && o.faults.Overrun(c.number) {
		c.fail(errOverrun)
		return
	}
	cqe.Timestamp = uint64(now)
	if solicited && o.armWord {
		cqe.Flags |= abi.WCFlagSolicited
	}
	b := c.shared.cqe[:]
	cqe.Marshal(b)
	err := c.ring.Write(b)
	if err == nil {
		err = c.ring.Commit()
	}
	if err != nil {
		c.fail(err)
		return
	}
	o.Stats.Completed++
	switch cqe.Status {
	case abi.WCSuccess:
	case abi.WCWRFlushErr:
		o.Stats.Flushed++
		solicited = true
	default:
		o.Stats.Errors++
		solicited = true
	}
	if solicited {
		c.notified = c.ring.Next()
	}
	wanted := c.armed == armedNext || c.armed == armedSolicited && solicited
	if wanted {
		c.armed = disarmed
	}
	if o.armWord {
		byWord, err := c.ring.Wanted(solicited)
		if err != nil {
			c.fail(err)
			return
		}
		wanted = wanted || byWord
		if o.strict {
			if index, ahead := c.ring.ArmedAhead(); ahead {
				o.Broke(abi.DRV709, abi.RingCQ, c.number, index, word(index))
			}
		}
	}
	if o.Trace != nil {
		o.Trace.CompletionWritten(c.number, uint8(cqe.Status), wanted || c.held > 0)
	}
	c.moderate(now, wanted)
}

// Number returns the number of the queue, 0 if c is nil, as in a QP without one.
func (c *CQ) Number() uint32 {
	if c == nil {
		return 0
	}
	return c.number
}

// Use adds n to the count of send and receive queues that use the queue.
func (c *CQ) Use(n int) {
	if c != nil {
		c.users += n
	}
}

// Broken reports whether the queue failed; false if c is nil, as in a QP without one.
func (c *CQ) Broken() bool { return c != nil && c.failed }

// fail marks the queue as failed and reports why. The queue pairs that use it fail when Settle
// runs.
func (c *CQ) fail(err error) {
	o := c.owner
	c.failed, o.dirty = true, true
	switch {
	case errors.Is(err, ring.ErrFull):
		o.Stats.CQOverflows++
		o.Broke(abi.DRV705, abi.RingCQ, c.number, c.ring.Next(), nil)
		o.Event(abi.EventCQError, c.number, uint32(abi.StatusNoResources),
			"completion queue overflowed: poll faster or create it with more entries")
	case errors.Is(err, errOverrun): // the driver broke no rule
		o.Stats.CQOverflows++
		o.Event(abi.EventCQError, c.number, uint32(abi.StatusNoResources), err.Error())
	case errors.Is(err, ring.ErrIndex):
		consumer, _ := c.area.Load32(abi.CQHeaderConsumer)
		o.Broke(abi.DRV704, abi.RingCQ, c.number, consumer, word(consumer))
		o.Event(abi.EventCQError, c.number, uint32(abi.StatusInvalidArgument), "the consumer index moved back or past the entries written")
	default:
		o.Broke(abi.DRV402, abi.RingCQ, c.number, c.ring.Next(), nil)
		o.Event(abi.EventCQError, c.number, uint32(abi.StatusMemoryFault), err.Error())
	}
}

// Arm requests one event when there is an entry at or after index or, with solicitedOnly, such an
// entry that is solicited or failed. Entries already there count, so that none is missed between
// polling and arming. An index far behind comes from a doorbell that was overtaken, or a coalesced
// one that came late; it costs no more than an early event. So does an index ahead, for example if
// a ResizeCQ overtook the doorbell: indices of the old area are meaningless then.
func (c *CQ) Arm(index uint32, solicitedOnly bool) {
	o := c.owner
	next := c.ring.Next()
	if int32(index-next) > 0 && !c.resized {
		o.Broke(abi.DRV708, abi.RingCQ, c.number, index, word(index))
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
		o.notifier.CQEvent(c.number)
		return
	}
	c.armed = max(c.armed, want) // a pending request for any entry takes precedence over one for solicited entries
}

func (t *CQs) count() int        { return t.table.InUse() }
func (t *CQs) setLimit(most int) { t.table.SetLimit(most) }

func (t *CQs) closeAll(vtime.Time) {
	t.table.Each(func(c *CQ) {
		c.stop()
		t.table.Remove(c.number)
	})
}

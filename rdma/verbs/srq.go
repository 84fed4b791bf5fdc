package verbs

import (
	"math/bits"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// SRQ is a shared receive queue. The messages of many QPs take its entries, in the order of
// arrival.
//
//	basic   QPs created with it; completions in each QP's receive CQ; entries name memory of the SRQ's PD
//	XRC     every XRC target QP of its domain, as the packets ask; completions in its own CQ; the SRQ's PD also decides
//	        which memory requests that name it may reach
type SRQ struct {
	in     *SRQs
	number uint32
	pd     *PD
	typ    abi.SRQType
	xrcd   *XRCD // XRC
	cq     *CQ   // XRC: where its receives complete; nil: the receive CQ of the QP that takes them
	queue  WorkQueue
	maxSGE int
	limit  uint32 // EventSRQLimit is sent when fewer entries are left; 0: never
	users  int    // QPs created with it
	taken  int    // entries taken by messages in progress
	failed bool   // it is broken, or its CQ failed
}

// SRQs holds the shared receive queues of a function.
type SRQs struct {
	owner   *Owner
	shared  *Shared
	pds     *PDs
	xrcds   *XRCDs
	regions *Regions
	cqs     *CQs
	table   Table[SRQ]
}

// SRQ returns the shared receive queue with number srqn, nil if there is none.
func (t *SRQs) SRQ(srqn uint32) *SRQ { return t.table.Get(srqn) }

// CreateSRQ makes a shared receive queue over a page list.
func (t *SRQs) CreateSRQ(c *abi.CreateSRQ) (srqn uint32, st abi.Status) {
	if !t.owner.Working() {
		return 0, abi.StatusBadState
	}
	s := &SRQ{in: t, pd: t.pds.PD(c.PDN), typ: c.Type, maxSGE: int(c.MaxSGE)}
	params := queueParams{
		Log2Entries: c.Log2Entries, Log2Stride: c.Log2Stride, Read: recvEntry(c.MaxSGE), Levels: c.Levels, Pages: c.Pages, Flags: c.Flags,
	}
	xrc := c.Type == abi.SRQTypeXRC
	if xrc {
		s.xrcd, s.cq = t.xrcds.XRCD(c.XRCDN), t.cqs.CQ(c.CQN)
	}
	switch {
	case s.pd == nil, xrc && (s.xrcd == nil || s.cq == nil):
		return 0, abi.StatusNotFound
	case c.Type > abi.SRQTypeXRC, !xrc && (c.XRCDN != 0 || c.CQN != 0):
		return 0, abi.StatusInvalidArgument
	case int(c.MaxSGE) > t.owner.limits.SGEs:
		return 0, abi.StatusTooLarge
	}
	if st := params.Check(t.owner.limits.QPEntries, 5); st != abi.StatusOK {
		return 0, st
	}
	if c.Limit > 1<<c.Log2Entries || c.Flags&^abi.QPPrivileged != 0 {
		return 0, abi.StatusInvalidArgument
	}
	if t.table.Full() {
		return 0, abi.StatusNoResources
	}
	if s.queue, st = t.owner.openQueue(abi.RingSRQ, params); st != abi.StatusOK {
		return 0, st
	}
	s.number, _ = t.table.Add(s)
	s.queue.number, s.limit = s.number, c.Limit
	s.pd.users++
	if xrc {
		s.xrcd.users++
		s.cq.users++
	}
	return s.number, abi.StatusOK
}

// ModifySRQ sets the limit, or replaces the area. consumer is the number of entries that were read
// from the old area, which is not read again once it is replaced.
func (t *SRQs) ModifySRQ(m *abi.ModifySRQ) (consumer uint32, st abi.Status) {
	if !t.owner.Working() {
		return 0, abi.StatusBadState
	}
	s := t.table.Get(m.SRQN)
	if s == nil {
		return 0, abi.StatusNotFound
	}
	u := &s.queue
	entries := u.Entries()
	params := queueParams{Log2Entries: m.Log2Entries, Log2Stride: uint8(bits.TrailingZeros32(u.layout.Stride())), Read: u.read, Levels: m.Levels, Pages: m.Pages, Flags: u.flags}
	resize := m.Mask&abi.SRQAttrArea != 0
	if resize {
		if st := params.Check(t.owner.limits.QPEntries, 5); st != abi.StatusOK {
			return 0, st
		}
		entries = 1 << m.Log2Entries
	}
	limit := s.limit
	if m.Mask&abi.SRQAttrLimit != 0 {
		limit = m.Limit
	}
	if m.Mask&^uint32(abi.SRQAttrArea|abi.SRQAttrLimit) != 0 || limit > entries {
		return 0, abi.StatusInvalidArgument
	}
	consumer = u.Index()
	if resize {
		q, st := t.owner.openQueue(abi.RingSRQ, params)
		if st != abi.StatusOK {
			return 0, st
		}
		q.number = s.number
		*u = q
	}
	s.limit = limit
	if m.Mask&abi.SRQAttrLimit != 0 {
		s.checkLimit() // there may already be too few entries
	}
	return consumer, abi.StatusOK
}

// QuerySRQ returns the attributes of a shared receive queue.
func (t *SRQs) QuerySRQ(srqn uint32) (abi.QuerySRQResult, abi.Status) {
	s := t.table.Get(srqn)
	if s == nil {
		return abi.QuerySRQResult{}, abi.StatusNotFound
	}
	return abi.QuerySRQResult{SRQN: s.number, Limit: s.limit, Entries: s.queue.Entries(), MaxSGE: uint32(s.maxSGE)}, abi.StatusOK
}

// DestroySRQ destroys a shared receive queue. It returns StatusBusy while QPs or messages in
// progress use the queue.
func (t *SRQs) DestroySRQ(srqn uint32) abi.Status {
	s := t.table.Get(srqn)
	switch {
	case s == nil:
		return abi.StatusNotFound
	case s.users > 0 || s.taken > 0:
		return abi.StatusBusy
	}
	s.destroy()
	return abi.StatusOK
}

func (s *SRQ) destroy() {
	s.in.table.Remove(s.number)
	s.pd.users--
	if s.typ == abi.SRQTypeXRC {
		s.xrcd.users--
		s.cq.users--
	}
}

func (t *SRQs) count() int          { return t.table.InUse() }
func (t *SRQs) setLimit(most int)   { t.table.SetLimit(most) }
func (t *SRQs) closeAll(vtime.Time) { t.table.Each((*SRQ).destroy) }

// Use adds n to the count of QPs created with the queue.
func (s *SRQ) Use(n int) {
	if s != nil {
		s.users += n
	}
}

// Taken returns how many entries are held by messages in progress.
func (s *SRQ) Taken() int { return s.taken }

// Doorbell handles a doorbell record.
func (s *SRQ) Doorbell(index uint32) { s.queue.Doorbell(index) }

// Take reads the next entry into v. ok is false if there is none.
func (s *SRQ) Take(v *Receive) (ok bool) {
	b, ok := s.queue.Next(s.in.shared.entry[:])
	if !ok {
		return false
	}
	v.Fill(&s.queue, s.in.regions, s.pd, b)
	v.SRQ = s
	s.taken++
	s.queue.Commit()
	s.checkLimit()
	return true
}

// checkLimit sends EventSRQLimit, once, if fewer entries than the limit are left.
func (s *SRQ) checkLimit() {
	if s.limit == 0 || s.queue.Ready() >= s.limit || !s.in.owner.Working() {
		return
	}
	if n, ok := s.queue.Poll(); ok && n < s.limit {
		s.limit = 0
		s.in.owner.Event(abi.EventSRQLimit, s.number, 0, "")
	}
}

// failBroken fails the SRQs that are broken or whose CQ failed.
func (t *SRQs) failBroken() {
	t.table.Each(func(s *SRQ) {
		switch {
		case s.cq.Broken():
			s.fail("its completion queue failed")
		case s.queue.broken != "":
			s.fail(s.queue.broken)
		}
	})
}

func (s *SRQ) fail(reason string) {
	if !s.failed {
		s.failed = true
		s.in.owner.Event(abi.EventSRQError, s.number, uint32(abi.StatusNoResources), reason)
	}
}

package rdma

import (
	"math/bits"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// SRQ is a shared receive queue: the messages of many QPs take its entries, in the order in which
// they arrive.
//
//	basic   QPs created with it; completions in each QP's receive CQ; entries name memory of the SRQ's PD
//	XRC     every XRC target QP of its domain, as the packets ask; completions in its own CQ; the SRQ's PD also decides
//	        which memory requests that name it may reach
type SRQ struct {
	fn     *Function
	number uint32
	pd     *PD
	typ    abi.SRQType
	xrcd   *XRCD // XRC
	cq     *CQ   // XRC
	queue  queue
	maxSGE int
	limit  uint32 // EventSRQLimit is due when fewer entries are left; 0: never
	users  int    // QPs created with it
	taken  int    // entries that messages in progress took
	failed bool   // its CQ failed
}

// recvEntry is how many bytes of a receive entry can matter.
func recvEntry(sges uint8) uint32 { return abi.RecvWQEHeader + uint32(sges)*abi.SGESize }

// CreateSRQ makes a shared receive queue over a page list.
func (f *Function) CreateSRQ(c *abi.CreateSRQ) (srqn uint32, st abi.Status) {
	if !f.working() {
		return 0, abi.StatusBadState
	}
	s := &SRQ{fn: f, pd: f.pds.get(c.PDN), typ: c.Type, maxSGE: int(c.MaxSGE)}
	params := queueParams{
		log2Entries: c.Log2Entries, log2Stride: c.Log2Stride, read: recvEntry(c.MaxSGE), levels: c.Levels, pages: c.Pages,
	}
	xrc := c.Type == abi.SRQTypeXRC
	if xrc {
		s.xrcd, s.cq = f.xrcds.get(c.XRCDN), f.cqs.get(c.CQN)
	}
	switch {
	case s.pd == nil, xrc && (s.xrcd == nil || s.cq == nil):
		return 0, abi.StatusNotFound
	case c.Type > abi.SRQTypeXRC, !xrc && (c.XRCDN != 0 || c.CQN != 0):
		return 0, abi.StatusInvalidArgument
	case int(c.MaxSGE) > f.limits.SGEs:
		return 0, abi.StatusTooLarge
	}
	if st := params.check(f.limits.QPEntries, 5); st != abi.StatusOK {
		return 0, st
	}
	if c.Limit > 1<<c.Log2Entries {
		return 0, abi.StatusInvalidArgument
	}
	if f.srqs.inUse >= f.srqs.limit {
		return 0, abi.StatusNoResources
	}
	if s.queue, st = f.openQueue("SRQ", params); st != abi.StatusOK {
		return 0, st
	}
	s.number, _ = f.srqs.add(s)
	s.queue.number, s.limit = s.number, c.Limit
	s.pd.users++
	if xrc {
		s.xrcd.users++
		s.cq.users++
	}
	return s.number, abi.StatusOK
}

// ModifySRQ sets the limit, or replaces the area. consumer is how many entries of the area were
// read; nothing looks at it any more when it was replaced.
func (f *Function) ModifySRQ(m *abi.ModifySRQ) (consumer uint32, st abi.Status) {
	if !f.working() {
		return 0, abi.StatusBadState
	}
	s := f.srqs.get(m.SRQN)
	if s == nil {
		return 0, abi.StatusNotFound
	}
	u := &s.queue
	entries := u.layout.Entries()
	params := queueParams{log2Entries: m.Log2Entries, log2Stride: uint8(bits.TrailingZeros32(u.layout.Stride())), read: u.read, levels: m.Levels, pages: m.Pages}
	resize := m.Mask&abi.SRQAttrArea != 0
	if resize {
		if st := params.check(f.limits.QPEntries, 5); st != abi.StatusOK {
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
	consumer = u.ring.Next()
	if resize {
		q, st := f.openQueue("SRQ", params)
		if st != abi.StatusOK {
			return 0, st
		}
		q.number = s.number
		*u = q
	}
	s.limit = limit
	if m.Mask&abi.SRQAttrLimit != 0 {
		s.checkLimit() // what is posted may be too little already
	}
	return consumer, abi.StatusOK
}

// QuerySRQ returns the attributes of a shared receive queue.
func (f *Function) QuerySRQ(srqn uint32) (abi.QuerySRQResult, abi.Status) {
	s := f.srqs.get(srqn)
	if s == nil {
		return abi.QuerySRQResult{}, abi.StatusNotFound
	}
	return abi.QuerySRQResult{SRQN: s.number, Limit: s.limit, Entries: s.queue.layout.Entries(), MaxSGE: uint32(s.maxSGE)}, abi.StatusOK
}

// DestroySRQ destroys a shared receive queue; StatusBusy while QPs or messages in progress use it.
func (f *Function) DestroySRQ(srqn uint32) abi.Status {
	s := f.srqs.get(srqn)
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
	s.fn.srqs.remove(s.number)
	s.pd.users--
	if s.typ == abi.SRQTypeXRC {
		s.xrcd.users--
		s.cq.users--
	}
}

// take reads the next entry into v. ok is false when there is none.
func (s *SRQ) take(v *receive) (ok bool) {
	f := s.fn
	b, ok := s.queue.next(f.e.buf[:])
	if !ok {
		return false
	}
	v.fill(f, s.pd, b)
	v.srq = s
	s.taken++
	s.queue.commit()
	s.checkLimit()
	return true
}

// checkLimit sends EventSRQLimit, once, when fewer entries than the limit are left.
func (s *SRQ) checkLimit() {
	if s.limit == 0 || s.queue.ring.Ready() >= s.limit || !s.fn.working() {
		return
	}
	n, err := s.queue.ring.Poll()
	switch {
	case err != nil:
		s.queue.fault(err)
	case n < s.limit:
		s.limit = 0
		s.fn.event(abi.EventSRQLimit, s.number, 0, "")
	}
}

// fail ends an XRC SRQ whose CQ failed.
func (s *SRQ) fail() {
	if !s.failed {
		s.failed = true
		s.fn.event(abi.EventSRQError, s.number, uint32(abi.StatusNoResources), "its completion queue failed")
	}
}

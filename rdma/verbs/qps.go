package verbs

import (
	"cmp"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// QPs holds the queue pairs of a function.
type QPs struct {
	owner   *Owner
	shared  *Shared
	sched   Scheduler
	pds     *PDs
	xrcds   *XRCDs
	regions *Regions
	cqs     *CQs
	srqs    *SRQs
	ahs     *AHs
	groups  *Groups
	table   Table[QP]
	gsi     *QP // has number 1
}

// StartAt makes the numbers of queue pairs begin at random. A peer's kernel knows its connections by the
// function's GUID and the number of the queue pair there. If numbers began anew after a reset, or at the NIC to
// which the function has moved, it would take a new connection for one that it still has, and refuse it: Linux
// with IB_CM_REJ_STALE_CONN.
func (t *QPs) StartAt(random uint64) { t.table.StartAt(random) }

// QP returns the queue pair with number qpn, nil if there is none.
func (t *QPs) QP(qpn uint32) *QP {
	if qpn == gsiNumber {
		return t.gsi
	}
	return t.table.Get(qpn)
}

// each calls do for every queue pair. do may destroy it.
func (t *QPs) each(do func(*QP)) {
	t.table.Each(do)
	if t.gsi != nil {
		do(t.gsi)
	}
}

func (t *QPs) count() int              { return t.table.InUse() }
func (t *QPs) setLimit(most int)       { t.table.SetLimit(most) }
func (t *QPs) closeAll(now vtime.Time) { t.each(func(q *QP) { q.destroy(now) }) }

// DestroyQP destroys a queue pair and closes its connection. Outstanding work gets no completion.
func (t *QPs) DestroyQP(now vtime.Time, qpn uint32) abi.Status {
	q := t.QP(qpn)
	if q == nil {
		return abi.StatusNotFound
	}
	q.destroy(now)
	return abi.StatusOK
}

func (q *QP) destroy(now vtime.Time) {
	q.stopWork()
	q.leaveConn(now)
	q.state = abi.QPStateReset
	q.windows.unbindAll()
	q.in.groups.forget(q)
	if q == q.in.gsi {
		q.in.gsi = nil
	} else {
		q.in.table.Remove(q.number)
	}
	q.count(-1)
}

// brokenQueue returns why one of the QP's queues is broken, "" if none is.
func (q *QP) brokenQueue() string {
	if q.recv.srq != nil {
		return cmp.Or(q.send.queue.broken, q.recv.srq.queue.broken)
	}
	return cmp.Or(q.send.queue.broken, q.recv.queue.broken)
}

// Settle moves queue pairs to ERR whose queues broke, and fails broken SRQs. Every entry point ends
// with it.
func (t *QPs) Settle(now vtime.Time) {
	if t.owner.dirty {
		t.settle(now)
	}
}

func (t *QPs) settle(now vtime.Time) {
	for t.owner.Unsettled() {
		t.each(func(q *QP) {
			switch {
			case q.send.cq.Broken() || q.recv.cq.Broken():
				q.fail(now, abi.WCGeneralErr, "completion queue failed")
			case q.brokenQueue() != "":
				q.fail(now, abi.WCLocQPOpErr, q.brokenQueue())
			}
		})
		t.srqs.failBroken()
	}
}

// Unstick wakes all queue pairs, whose send queues Faults.Stuck may have held back.
func (t *QPs) Unstick(now vtime.Time) {
	t.each((*QP).wake)
	t.Settle(now)
}

// count adds n to the users of every object that the QP uses.
func (q *QP) count(n int) {
	q.pd.Use(n)
	q.send.cq.Use(n)
	q.recv.cq.Use(n)
	q.recv.srq.Use(n)
	q.recv.xrcd.Use(n)
}

// parts looks up the objects that a queue pair consists of, which depend on its type.
func (t *QPs) parts(c *abi.CreateQP) (*QP, abi.Status) {
	q := &QP{
		in: t, owner: t.owner, shared: t.shared, sched: t.sched,
		typ: c.Type, attr: defaultAttributes(t.owner.Limits()), peer: remote{ird: anyIRD},
	}
	if t.owner.Limits().RCOnly && c.Type != abi.QPTypeRC {
		return nil, abi.StatusUnsupported
	}
	switch c.Type {
	case abi.QPTypeRC, abi.QPTypeUC, abi.QPTypeUD, abi.QPTypeGSI:
		q.pd, q.send.cq, q.recv.cq = t.pds.PD(c.PDN), t.cqs.CQ(c.SendCQ), t.cqs.CQ(c.RecvCQ)
		if q.pd == nil || q.send.cq == nil || q.recv.cq == nil {
			return nil, abi.StatusNotFound
		}
		if c.SRQN != 0 {
			if q.recv.srq = t.srqs.SRQ(c.SRQN); q.recv.srq == nil {
				return nil, abi.StatusNotFound
			}
			if q.recv.srq.typ != abi.SRQTypeBasic {
				return nil, abi.StatusInvalidArgument
			}
		}
	case abi.QPTypeXRCSend:
		if q.pd, q.send.cq = t.pds.PD(c.PDN), t.cqs.CQ(c.SendCQ); q.pd == nil || q.send.cq == nil {
			return nil, abi.StatusNotFound
		}
		if c.RecvCQ != 0 || c.SRQN != 0 {
			return nil, abi.StatusInvalidArgument
		}
	case abi.QPTypeXRCRecv:
		if q.recv.xrcd = t.xrcds.XRCD(c.XRCDN); q.recv.xrcd == nil {
			return nil, abi.StatusNotFound
		}
		if c.PDN != 0 || c.SendCQ != 0 || c.RecvCQ != 0 || c.SRQN != 0 {
			return nil, abi.StatusInvalidArgument
		}
	default:
		return nil, abi.StatusUnsupported
	}
	q.ordering, q.unordered = c.Ordering, c.Ordering == abi.OrderingUnordered
	q.inError = c.ErrorMode == abi.ErrorModeCompleteInError
	q.send.signalAll = c.SigAll == 1 || q.unordered // a completion in any order says nothing about other requests
	switch {
	case c.Ordering > abi.OrderingUnordered || c.ErrorMode > abi.ErrorModeCompleteInError,
		q.unordered && !q.inError, // RDMA over Falcon §6.4
		q.unreliable() && (c.Ordering != abi.OrderingStrong || q.inError): // a lost packet of it can be neither reordered nor failed at the peer
		return nil, abi.StatusInvalidArgument
	}
	if c.SigAll > 1 || c.Flags&^abi.QPPrivileged != 0 || c.Type != abi.QPTypeXRCRecv && c.XRCDN != 0 {
		return nil, abi.StatusInvalidArgument
	}
	return q, abi.StatusOK
}

// CreateQP makes a queue pair in state RESET.
func (t *QPs) CreateQP(c *abi.CreateQP) (qpn uint32, st abi.Status) {
	if !t.owner.Working() {
		return 0, abi.StatusBadState
	}
	q, st := t.parts(c)
	if st != abi.StatusOK {
		t.brokeXRC(c, st)
		if st == abi.StatusInvalidArgument && c.Type == abi.QPTypeUC && (c.Ordering != abi.OrderingStrong || c.ErrorMode != abi.ErrorModeVerbs) {
			t.owner.Broke(abi.DRV960, abi.RingAdmin, 0, 0, nil)
		}
		return 0, st
	}
	l := t.owner.Limits()
	if int(c.MaxSendSGE) > l.SGEs || int(c.MaxRecvSGE) > l.SGEs || int(c.MaxInline) > l.Inline {
		return 0, abi.StatusTooLarge
	}
	sq := queueParams{Log2Entries: c.SQLog2Entries, Log2Stride: c.SQLog2Stride, Read: sendEntry(c), Levels: c.SQLevels, Pages: c.SQPages, Flags: c.Flags}
	rq := queueParams{Log2Entries: c.RQLog2Entries, Log2Stride: c.RQLog2Stride, Read: recvEntry(c.MaxRecvSGE), Levels: c.RQLevels, Pages: c.RQPages, Flags: c.Flags}
	queues := []struct {
		has  bool
		to   *WorkQueue
		kind abi.Ring
		p    queueParams
		min  uint8 // log2 of the stride
	}{
		{c.Type != abi.QPTypeXRCRecv, &q.send.queue, abi.RingSQ, sq, 6},
		{(c.Type == abi.QPTypeRC || q.unreliable() || q.datagrams()) && q.recv.srq == nil, &q.recv.queue, abi.RingRQ, rq, 5},
	}
	for _, u := range queues {
		if u.has {
			st = u.p.Check(l.QPEntries, u.min)
		} else {
			st = u.p.checkNone()
		}
		if st != abi.StatusOK {
			if u.has && u.p.Read > 1<<u.p.Log2Stride {
				t.owner.Broke(abi.DRV608, abi.RingAdmin, 0, 0, nil)
			} else if !u.has {
				t.brokeXRC(c, st)
			}
			return 0, st
		}
	}
	switch {
	case c.Type == abi.QPTypeGSI && t.gsi != nil:
		return 0, abi.StatusBusy
	case c.Type != abi.QPTypeGSI && t.table.Full():
		return 0, abi.StatusNoResources
	}
	for _, u := range queues {
		if !u.has {
			continue
		}
		if *u.to, st = t.owner.openQueue(u.kind, u.p); st != abi.StatusOK {
			return 0, st
		}
	}
	if c.Type == abi.QPTypeGSI {
		q.number, t.gsi = gsiNumber, q
	} else {
		q.number, _ = t.table.Add(q)
		if q.number == abi.GroupQPN { // means something else
			t.table.Remove(q.number)
			q.number, _ = t.table.Add(q)
		}
	}
	shares := half{
		owner: t.owner, shared: t.shared, regions: t.regions, number: q.number, typ: q.typ, pd: q.pd, windows: &q.windows, attr: &q.attr,
		peer: &q.peer, inError: q.inError,
	}
	q.send.half, q.recv.half = shares, shares
	q.send.unordered, q.send.ordered, q.send.ahs = q.unordered, q.Ordered(), t.ahs
	q.send.works.init(&t.shared.sends, min(q.send.queue.Entries(), maxWorks), int(c.MaxSendSGE), int(c.MaxInline))
	q.recv.srqs = t.srqs
	q.recv.messages.maxSGE = q.recv.maxSGE(c)
	if q.datagrams() { // there is no connection to wait for
		q.recv.messages.connect(true, 0)
	}
	q.send.queue.Name(q.number)
	q.recv.queue.Name(q.number)
	q.count(1)
	return q.number, abi.StatusOK
}

// brokeXRC reports that a command asked for an XRC QP with parts that such a QP does not have.
func (t *QPs) brokeXRC(c *abi.CreateQP, st abi.Status) {
	if st == abi.StatusInvalidArgument && (c.Type == abi.QPTypeXRCSend || c.Type == abi.QPTypeXRCRecv) {
		t.owner.Broke(abi.DRV924, abi.RingAdmin, 0, 0, nil)
	}
}

// sendEntry returns how many bytes of a send entry are read: the announced SGEs or inline data, and
// the parameters that some operations have behind the header, as far as the stride has room.
// Strides are powers of two, so masks and an SGE fit every entry that holds an SGE.
func sendEntry(c *abi.CreateQP) uint32 {
	n := abi.SendWQEHeader + max(uint32(c.MaxSendSGE)*abi.SGESize, uint32(c.MaxInline))
	if c.MaxSendSGE > 0 {
		n = max(n, abi.SendWQEHeader+abi.AtomicMasksSize+abi.SGESize)
	}
	op := abi.OpBindMW
	if c.Flags&abi.QPPrivileged != 0 {
		op = abi.OpRegMR
	}
	return max(n, min(abi.SendWQEHeader+uint32(parameters(op)), uint32(1)<<c.SQLog2Stride))
}

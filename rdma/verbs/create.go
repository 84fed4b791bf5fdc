package verbs

import (
	"github.com/falcon-vnic/vnic/queues/abi"
)

// parts looks up the objects that a queue pair consists of, which depend on its type.
func (t *QPs) parts(c *abi.CreateQP) (*QP, abi.Status) {
	q := &QP{
		in: t, owner: t.owner, regions: t.regions, shared: t.shared, sched: t.sched,
		typ: c.Type, attr: defaultAttributes(t.owner.Limits()), peer: remote{ird: anyIRD},
	}
	q.requester.q, q.responder.q, q.sender.q = q, q, q
	q.sigAll = c.SigAll == 1
	switch c.Type {
	case abi.QPTypeRC, abi.QPTypeUC, abi.QPTypeUD, abi.QPTypeGSI:
		q.pd, q.sendCQ, q.recvCQ = t.pds.PD(c.PDN), t.cqs.CQ(c.SendCQ), t.cqs.CQ(c.RecvCQ)
		if q.pd == nil || q.sendCQ == nil || q.recvCQ == nil {
			return nil, abi.StatusNotFound
		}
		if c.SRQN != 0 {
			if q.srq = t.srqs.SRQ(c.SRQN); q.srq == nil {
				return nil, abi.StatusNotFound
			}
			if !q.srq.basic() {
				return nil, abi.StatusInvalidArgument
			}
		}
	case abi.QPTypeXRCSend:
		if q.pd, q.sendCQ = t.pds.PD(c.PDN), t.cqs.CQ(c.SendCQ); q.pd == nil || q.sendCQ == nil {
			return nil, abi.StatusNotFound
		}
		if c.RecvCQ != 0 || c.SRQN != 0 {
			return nil, abi.StatusInvalidArgument
		}
	case abi.QPTypeXRCRecv:
		if q.xrcd = t.xrcds.XRCD(c.XRCDN); q.xrcd == nil {
			return nil, abi.StatusNotFound
		}
		if c.PDN != 0 || c.SendCQ != 0 || c.RecvCQ != 0 || c.SRQN != 0 {
			return nil, abi.StatusInvalidArgument
		}
	default:
		return nil, abi.StatusUnsupported
	}
	q.ordering, q.unordered = c.Ordering, c.Ordering == abi.OrderingUnordered
	q.cie = c.ErrorMode == abi.ErrorModeCompleteInError
	q.sigAll = q.sigAll || q.unordered // a completion in any order says nothing about other requests
	switch {
	case c.Ordering > abi.OrderingUnordered || c.ErrorMode > abi.ErrorModeCompleteInError,
		q.unordered && !q.cie, // RDMA over Falcon §6.4
		q.unreliable() && (c.Ordering != abi.OrderingStrong || q.cie): // a lost packet of it can be neither reordered nor failed at the peer
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
		{c.Type != abi.QPTypeXRCRecv, &q.sq, abi.RingSQ, sq, 6},
		{(c.Type == abi.QPTypeRC || q.unreliable() || q.datagrams()) && q.srq == nil, &q.rq, abi.RingRQ, rq, 5},
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
	q.req.init(&t.shared.sends, min(q.sq.Entries(), maxWorks), int(c.MaxSendSGE), int(c.MaxInline))
	q.rsp.maxSGE = q.maxRecvSGE(c)
	if c.Type == abi.QPTypeGSI {
		q.number, t.gsi = gsiNumber, q
	} else {
		q.number, _ = t.table.Add(q)
	}
	if q.datagrams() { // there is no connection to wait for
		q.rsp.connect(true, 0)
	}
	q.sq.Name(q.number)
	q.rq.Name(q.number)
	q.count(1)
	return q.number, abi.StatusOK
}

// maxRecvSGE returns the maximum of SGEs in a receive of the QP.
func (r *responder) maxRecvSGE(c *abi.CreateQP) int {
	q := r.q
	switch {
	case r.srq != nil:
		return r.srq.MaxSGE()
	case q.typ == abi.QPTypeXRCRecv:
		return q.owner.Limits().SGEs
	}
	return int(c.MaxRecvSGE)
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

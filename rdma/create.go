package rdma

import (
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// parts looks up what a queue pair is made of, which depends on its type.
func (f *Function) parts(c *abi.CreateQP) (*QP, abi.Status) {
	q := &QP{fn: f, typ: c.Type, sigAll: c.SigAll == 1, attr: f.defaultAttributes(), peerIRD: anyIRD}
	switch c.Type {
	case abi.QPTypeRC, abi.QPTypeUD, abi.QPTypeGSI:
		q.pd, q.sendCQ, q.recvCQ = f.pds.get(c.PDN), f.cqs.get(c.SendCQ), f.cqs.get(c.RecvCQ)
		if q.pd == nil || q.sendCQ == nil || q.recvCQ == nil {
			return nil, abi.StatusNotFound
		}
		if c.SRQN != 0 {
			if q.srq = f.srqs.get(c.SRQN); q.srq == nil {
				return nil, abi.StatusNotFound
			}
			if q.srq.typ != abi.SRQTypeBasic {
				return nil, abi.StatusInvalidArgument
			}
		}
	case abi.QPTypeXRCSend:
		q.service = wire.XRC
		if q.pd, q.sendCQ = f.pds.get(c.PDN), f.cqs.get(c.SendCQ); q.pd == nil || q.sendCQ == nil {
			return nil, abi.StatusNotFound
		}
		if c.RecvCQ != 0 || c.SRQN != 0 {
			return nil, abi.StatusInvalidArgument
		}
	case abi.QPTypeXRCRecv:
		q.service = wire.XRC
		if q.xrcd = f.xrcds.get(c.XRCDN); q.xrcd == nil {
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
	q.sigAll = q.sigAll || q.unordered // who completes in any order says nothing about others
	switch {
	case c.Ordering > abi.OrderingUnordered || c.ErrorMode > abi.ErrorModeCompleteInError,
		q.unordered && !q.cie: // RDMA over Falcon §6.4
		return nil, abi.StatusInvalidArgument
	}
	if c.SigAll > 1 || c.Type != abi.QPTypeXRCRecv && c.XRCDN != 0 {
		return nil, abi.StatusInvalidArgument
	}
	return q, abi.StatusOK
}

// CreateQP makes a queue pair in state RESET.
func (f *Function) CreateQP(c *abi.CreateQP) (qpn uint32, st abi.Status) {
	if !f.working() {
		return 0, abi.StatusBadState
	}
	q, st := f.parts(c)
	if st != abi.StatusOK {
		f.brokeXRC(c, st)
		return 0, st
	}
	l := &f.limits
	if int(c.MaxSendSGE) > l.SGEs || int(c.MaxRecvSGE) > l.SGEs || int(c.MaxInline) > l.Inline {
		return 0, abi.StatusTooLarge
	}
	sq := queueParams{log2Entries: c.SQLog2Entries, log2Stride: c.SQLog2Stride, read: sendEntry(c), levels: c.SQLevels, pages: c.SQPages}
	rq := queueParams{log2Entries: c.RQLog2Entries, log2Stride: c.RQLog2Stride, read: recvEntry(c.MaxRecvSGE), levels: c.RQLevels, pages: c.RQPages}
	queues := []struct {
		has  bool
		to   *queue
		name string
		p    queueParams
		min  uint8 // log2 of the stride
	}{
		{c.Type != abi.QPTypeXRCRecv, &q.sq, "SQ of QP", sq, 6},
		{(c.Type == abi.QPTypeRC || q.datagrams()) && q.srq == nil, &q.rq, "RQ of QP", rq, 5},
	}
	for _, u := range queues {
		if u.has {
			st = u.p.check(l.QPEntries, u.min)
		} else {
			st = statusIf(u.p.log2Entries|u.p.log2Stride|u.p.levels != 0 || u.p.pages != 0, abi.StatusInvalidArgument)
		}
		if st != abi.StatusOK {
			if u.has && u.p.read > 1<<u.p.log2Stride {
				f.broke(abi.DRV608, abi.RingAdmin, 0, 0, []byte{u.p.log2Stride})
			} else if !u.has {
				f.brokeXRC(c, st)
			}
			return 0, st
		}
	}
	switch {
	case c.Type == abi.QPTypeGSI && f.gsi != nil:
		return 0, abi.StatusBusy
	case c.Type != abi.QPTypeGSI && f.qps.inUse >= f.qps.limit:
		return 0, abi.StatusNoResources
	}
	for _, u := range queues {
		if !u.has {
			continue
		}
		if *u.to, st = f.openQueue(u.name, u.p); st != abi.StatusOK {
			return 0, st
		}
	}
	q.req.init(f.e, min(q.sq.layout.Entries(), maxWorks), int(c.MaxSendSGE), int(c.MaxInline))
	q.rsp.maxSGE = q.maxRecvSGE(c)
	q.ready.of, q.polled.of, q.lingering.of = q, q, q
	if c.Type == abi.QPTypeGSI {
		q.number, f.gsi = gsiNumber, q
	} else {
		q.number, _ = f.qps.add(q)
	}
	if q.datagrams() { // there is no connection to wait for
		q.req.connect()
		q.rsp.connect(true, 0)
	}
	q.sq.number, q.rq.number = q.number, q.number
	for _, u := range []*queue{&q.sq, &q.rq} {
		f.zero(abi.DRV601, u.kind(), q.number, u.area, u.layout.Size())
	}
	q.count(1)
	return q.number, abi.StatusOK
}

// maxRecvSGE is the most SGEs a receive of the QP can have.
func (q *QP) maxRecvSGE(c *abi.CreateQP) int {
	switch {
	case q.srq != nil:
		return q.srq.maxSGE
	case q.typ == abi.QPTypeXRCRecv:
		return q.fn.limits.SGEs
	}
	return int(c.MaxRecvSGE)
}

// count adds n to the users of everything the QP is made of.
func (q *QP) count(n int) {
	if q.pd != nil {
		q.pd.users += n
	}
	if q.sendCQ != nil {
		q.sendCQ.users += n
	}
	if q.recvCQ != nil {
		q.recvCQ.users += n
	}
	if q.srq != nil {
		q.srq.users += n
	}
	if q.xrcd != nil {
		q.xrcd.users += n
	}
}

// sendEntry is how many bytes of a send entry can matter. What follows the header of some
// operations fits every entry that holds an SGE: strides are powers of two.
func sendEntry(c *abi.CreateQP) uint32 {
	n := abi.SendWQEHeader + max(uint32(c.MaxSendSGE)*abi.SGESize, uint32(c.MaxInline))
	if c.MaxSendSGE > 0 {
		n = max(n, abi.SendWQEHeader+abi.AtomicMasksSize+abi.SGESize) // also room for BindMW
	}
	return n
}

package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// receiveFor returns the receive of the message of that number. Messages take the receives of a
// QP's own queue in the order of their numbers (RDMA over Falcon §8.3.2), those of a shared queue as they come. It is
// nil when none is posted, or none can be held: the peer has to wait.
func (q *QP) receiveFor(number uint32) *Receive {
	r := &q.rsp
	if number-r.message >= uint32(len(r.receives)) {
		return nil
	}
	if s := q.source(); s != nil {
		v := r.receive(number)
		if !v.Taken && !s.Take(v) {
			return nil
		}
		return v
	}
	for ; r.fetched-r.message <= number-r.message; r.fetched++ {
		b, ok := q.rq.Next(q.shared.entry[:])
		if !ok {
			return nil
		}
		r.receive(r.fetched).Fill(&q.rq, q.regions, q.pd, b)
		q.rq.Commit()
	}
	return r.receive(number)
}

// source is the shared queue the packet at hand receives from, nil when the QP has a queue of its
// own.
func (q *QP) source() *SRQ {
	if q.typ == abi.QPTypeXRCRecv {
		return q.rsp.srq
	}
	return q.srq
}

// domain is the protection domain the requests of the peer are checked against: the QP's, or that
// of the XRC SRQ the packet at hand names.
func (q *QP) domain() *PD {
	if q.typ == abi.QPTypeXRCRecv {
		return q.rsp.srq.PD()
	}
	return q.pd
}

// completeRecv writes the completion of v, whose slot is free then.
func (q *QP) completeRecv(now vtime.Time, v *Receive, cqe *abi.CQE, solicited bool) {
	cq := q.recvCQ
	cqe.WRID, cqe.QPN = v.WRID, q.number
	if s := v.SRQ; s != nil {
		cqe.SRQN = s.Number()
		if s.CQ() != nil {
			cq = s.CQ()
		}
	}
	v.Release()
	cq.Post(now, cqe, solicited)
}

// finishRecv completes a receive in error.
func (q *QP) finishRecv(now vtime.Time, v *Receive, st abi.WCStatus) {
	q.completeRecv(now, v, &abi.CQE{SrcQP: q.peer, Status: st, Opcode: abi.WCOpRecv}, false)
}

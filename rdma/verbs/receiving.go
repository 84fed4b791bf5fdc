package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// receiveFor returns the receive for the message with that number. Messages take the receives of a
// QP's own queue in the order of their numbers (RDMA over Falcon §8.3.2), those of a shared queue
// in the order of arrival. It returns nil if none is posted or no more can be held: the peer has to
// wait.
func (r *responder) receiveFor(number uint32) *Receive {
	q := r.q
	m := &r.rsp
	if number-m.message >= uint32(len(m.receives)) {
		return nil
	}
	if s := r.source(); s != nil {
		v := m.receive(number)
		if !v.Taken && !s.Take(v) {
			return nil
		}
		return v
	}
	for ; m.fetched-m.message <= number-m.message; m.fetched++ {
		b, ok := r.rq.Next(q.shared.entry[:])
		if !ok {
			return nil
		}
		m.receive(m.fetched).Fill(&r.rq, q.regions, q.pd, b)
		r.rq.Commit()
	}
	return m.receive(number)
}

// source returns the shared queue that the current packet receives from, nil if the QP has a queue
// of its own.
func (r *responder) source() *SRQ {
	q := r.q
	if q.typ == abi.QPTypeXRCRecv {
		return r.rsp.srq
	}
	return r.srq
}

// domain returns the protection domain that the requests of the peer are checked against: the QP's,
// or that of the XRC SRQ that the current packet names.
func (r *responder) domain() *PD {
	q := r.q
	if q.typ == abi.QPTypeXRCRecv {
		return r.rsp.srq.PD()
	}
	return q.pd
}

// completeRecv writes the completion of v and frees its slot.
func (r *responder) completeRecv(now vtime.Time, v *Receive, cqe *abi.CQE, solicited bool) {
	q := r.q
	cq := r.recvCQ
	cqe.WRID, cqe.QPN = v.WRID, q.number
	if s := v.SRQ; s != nil {
		cqe.SRQN = s.Number()
		if s.CQ() != nil {
			cq = s.CQ()
		}
	}
	v.Release()
	cq.post(now, cqe, solicited)
}

// finishRecv completes a receive in error.
func (r *responder) finishRecv(now vtime.Time, v *Receive, st abi.WCStatus) {
	q := r.q
	r.completeRecv(now, v, &abi.CQE{SrcQP: q.peer.number, Status: st, Opcode: abi.WCOpRecv}, false)
}

package rdma

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// receive is one receive work request, read once from the RQ or SRQ for the message that takes it.
type receive struct {
	taken    bool
	done     bool // its message is complete, older ones are not (unordered mode)
	wrid     uint64
	sges     []sge // capacity is the QP's MaxRecvSGE, or what any SRQ may have
	capacity uint64
	status   abi.WCStatus // of its checks
	srq      *SRQ         // it came from
}

// fill makes v from an entry whose SGEs name memory of pd.
func (v *receive) fill(f *Function, pd *PD, entry []byte) {
	var x abi.RecvWQE
	x.Unmarshal(entry)
	*v = receive{taken: true, wrid: x.WRID, sges: v.sges[:0]}
	if int(x.NumSGE) > (len(entry)-abi.RecvWQEHeader)/abi.SGESize {
		v.status = abi.WCLocQPOpErr
		return
	}
	var ok bool
	if v.sges, v.capacity, ok = f.sges(pd, v.sges, entry[abi.RecvWQEHeader:], int(x.NumSGE), abi.AccessLocalWrite); !ok {
		v.status = abi.WCLocProtErr
	}
}

// release gives v's slot back.
func (v *receive) release() {
	if v.taken && v.srq != nil {
		v.srq.taken--
	}
	v.taken, v.srq = false, nil
}

// oldest returns the receive of the oldest unfinished message that has one.
func (r *responder) oldest() (*receive, bool) {
	for i := range uint32(len(r.receives)) {
		if v := r.receive(r.rmsn + i); v.taken {
			return v, true
		}
	}
	return nil, false
}

func (r *responder) receive(rmsn uint32) *receive { return &r.receives[rmsn&uint32(len(r.receives)-1)] }

// receiveFor returns the receive of message rmsn. Messages take the receives of a QP's own queue in
// the order of their numbers (RDMA over Falcon §8.3.2), those of a shared queue as they come. It is
// nil when none is posted, or none can be held: the peer has to wait.
func (q *QP) receiveFor(rmsn uint32) *receive {
	r := &q.rsp
	if rmsn-r.rmsn >= uint32(len(r.receives)) {
		return nil
	}
	if s := q.source(); s != nil {
		v := r.receive(rmsn)
		if !v.taken && !s.take(v) {
			return nil
		}
		return v
	}
	for ; r.fetched-r.rmsn <= rmsn-r.rmsn; r.fetched++ {
		b, ok := q.rq.next(q.fn.e.buf[:])
		if !ok {
			return nil
		}
		r.receive(r.fetched).fill(q.fn, q.pd, b)
		q.rq.commit()
	}
	return r.receive(rmsn)
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
		return q.rsp.srq.pd
	}
	return q.pd
}

// completeRecv writes the completion of v, whose slot is free then.
func (q *QP) completeRecv(now falcon.Time, v *receive, cqe *abi.CQE, solicited bool) {
	cq := q.recvCQ
	cqe.WRID, cqe.QPN = v.wrid, q.number
	if s := v.srq; s != nil {
		cqe.SRQN = s.number
		if s.cq != nil {
			cq = s.cq
		}
	}
	v.release()
	cq.post(now, cqe, solicited)
}

// finishRecv completes a receive in error.
func (q *QP) finishRecv(now falcon.Time, v *receive, st abi.WCStatus) {
	q.completeRecv(now, v, &abi.CQE{SrcQP: q.peer, Status: st, Opcode: abi.WCOpRecv}, false)
}

// received completes the receive v of the message that a ends.
func (q *QP) received(now falcon.Time, v *receive, a *arrival, bytes uint64, failed abi.WCStatus) {
	if q.fn.trace != nil {
		q.noteReceiving(q.conn, a.rsn)
	}
	if failed != abi.WCSuccess {
		q.finishRecv(now, v, failed)
		return
	}
	cqe := abi.CQE{ByteLen: uint32(bytes), SrcQP: q.peer, Opcode: abi.WCOpRecv}
	switch a.opcode {
	case wire.WriteLastImm, wire.WriteOnlyImm:
		cqe.Opcode = abi.WCOpRecvWriteImm
		fallthrough
	case wire.SendLastImm, wire.SendOnlyImm:
		cqe.Flags, cqe.Imm = abi.WCFlagImm, a.imm
	case wire.SendLastInv, wire.SendOnlyInv:
		pd := q.pd
		if pd == nil {
			pd = v.srq.pd // XRC
		}
		if m := q.invalidatable(pd, a.imm); m != nil {
			m.invalidateRemote()
		}
		cqe.Flags, cqe.Imm = abi.WCFlagInv, a.imm
	}
	q.completeRecv(now, v, &cqe, a.solicited)
}

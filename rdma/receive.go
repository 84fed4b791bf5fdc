package rdma

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// receive is one receive work request, read once from the RQ for the message that takes it.
type receive struct {
	wrid     uint64
	sges     []sge // capacity is the QP's MaxRecvSGE
	capacity uint64
	status   abi.WCStatus // of its checks
}

// oldest returns the receive of the oldest unfinished message, if it was read already.
func (r *responder) oldest() (*receive, bool) {
	if r.fetched == r.rmsn {
		return nil, false
	}
	return r.receive(r.rmsn), true
}

func (r *responder) receive(rmsn uint32) *receive { return &r.receives[rmsn&uint32(len(r.receives)-1)] }

// receiveFor returns the receive of message rmsn: messages take receives in the order of their numbers (RDMA over
// Falcon §8.3.2). It is nil when none is posted, or none can be held: the peer has to wait.
func (q *QP) receiveFor(rmsn uint32) *receive {
	r := &q.rsp
	if rmsn-r.rmsn >= uint32(len(r.receives)) {
		return nil
	}
	for r.fetched-r.rmsn <= rmsn-r.rmsn {
		b, ok := q.rq.next(q, q.fn.e.buf[:])
		if !ok {
			return nil
		}
		v := r.receive(r.fetched)
		r.fetched++
		var x abi.RecvWQE
		x.Unmarshal(b)
		*v = receive{wrid: x.WRID, sges: v.sges[:0]}
		if int(x.NumSGE) > cap(v.sges) {
			v.status = abi.WCLocQPOpErr
		} else if v.sges, v.capacity, ok = q.sges(v.sges, b[abi.RecvWQEHeader:], int(x.NumSGE), abi.AccessLocalWrite); !ok {
			v.status = abi.WCLocProtErr
		}
		q.rq.commit(q)
	}
	return r.receive(rmsn)
}

// finishRecv completes the oldest receive in error.
func (q *QP) finishRecv(now falcon.Time, v *receive, st abi.WCStatus) {
	q.rsp.rmsn++
	q.recvCQ.post(now, &abi.CQE{WRID: v.wrid, QPN: q.number, SrcQP: q.peer, Status: st, Opcode: abi.WCOpRecv}, false)
}

package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// flushTurn limits the work requests of each queue that a failed QP flushes in one turn.
const flushTurn = 64

func (s *requester) flushSends(now vtime.Time) (more bool) {
	q := s.q
	r := &s.req
	for range flushTurn {
		if r.head != r.tail {
			r.work(r.head).Vendor = 0
			s.finish(now, abi.WCWRFlushErr)
			continue
		}
		b, ok := s.sq.Next(q.shared.entry[:])
		if !ok {
			return s.sq.Sleep()
		}
		var x abi.SendWQE
		x.Unmarshal(b)
		q.owner.Stats.Posted++
		s.sendCQ.post(now, &abi.CQE{
			WRID: x.WRID, QPN: q.number, Status: abi.WCWRFlushErr, Opcode: WCOpcode(x.Opcode),
		}, false)
	}
	s.sq.Commit()
	return true
}

// lastReceive tells the driver, once, that the failed QP takes no more entries of a shared queue.
func (r *responder) lastReceive() {
	q := r.q
	if !r.rq.Open() && q.typ != abi.QPTypeXRCSend && !r.lastWQE {
		r.lastWQE = true
		q.owner.Event(abi.EventLastWQE, q.number, 0, "")
	}
}

func (r *responder) flushRecvs(now vtime.Time) (more bool) {
	q := r.q
	for range flushTurn {
		if v, ok := r.rsp.oldest(); ok {
			r.finishRecv(now, v, abi.WCWRFlushErr)
			continue
		}
		b, ok := r.rq.Next(q.shared.entry[:])
		if !ok {
			r.lastReceive()
			return r.rq.Sleep()
		}
		var x abi.RecvWQE
		x.Unmarshal(b)
		r.recvCQ.post(now, &abi.CQE{
			WRID: x.WRID, QPN: q.number, Status: abi.WCWRFlushErr, Opcode: abi.WCOpRecv,
		}, false)
	}
	r.rq.Commit()
	return true
}

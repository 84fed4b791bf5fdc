package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// flushTurn is how many work requests of each queue one turn of a failed QP flushes.
const flushTurn = 64

// flush completes work requests of a QP in ERR with WCWRFlushErr, in the order of posting: those
// read before, then those still in guest memory. It reports whether there may be more.
func (q *QP) flush(now vtime.Time) (more bool) {
	send := q.flushSends(now)
	recv := q.flushRecvs(now)
	return (send || recv) && q.owner.Working() && q.state == abi.QPStateErr
}

func (q *QP) flushSends(now vtime.Time) (more bool) {
	r := &q.req
	for range flushTurn {
		if r.head != r.tail {
			r.work(r.head).Vendor = 0
			q.finish(now, abi.WCWRFlushErr)
			continue
		}
		b, ok := q.sq.Next(q.shared.entry[:])
		if !ok {
			return q.sq.Sleep()
		}
		var x abi.SendWQE
		x.Unmarshal(b)
		q.owner.Stats.Posted++
		q.sendCQ.Post(now, &abi.CQE{
			WRID: x.WRID, QPN: q.number, Status: abi.WCWRFlushErr, Opcode: WCOpcode(x.Opcode),
		}, false)
	}
	q.sq.Commit()
	return true
}

// lastReceive tells the driver, once, that the failed QP takes no entry of a shared queue any more.
func (q *QP) lastReceive() {
	if !q.rq.Open() && q.typ != abi.QPTypeXRCSend && !q.lastWQE {
		q.lastWQE = true
		q.owner.Event(abi.EventLastWQE, q.number, 0, "")
	}
}

func (q *QP) flushRecvs(now vtime.Time) (more bool) {
	for range flushTurn {
		if v, ok := q.rsp.oldest(); ok {
			q.finishRecv(now, v, abi.WCWRFlushErr)
			continue
		}
		b, ok := q.rq.Next(q.shared.entry[:])
		if !ok {
			q.lastReceive()
			return q.rq.Sleep()
		}
		var x abi.RecvWQE
		x.Unmarshal(b)
		q.recvCQ.Post(now, &abi.CQE{
			WRID: x.WRID, QPN: q.number, Status: abi.WCWRFlushErr, Opcode: abi.WCOpRecv,
		}, false)
	}
	q.rq.Commit()
	return true
}

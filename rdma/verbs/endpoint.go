package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

var _ transport.Endpoint = (*QP)(nil)

// A queue pair is the endpoint of its connection. First what it does for the peer: the receiver
// checks and places, and what it refuses may fail the queue pair.

// Serving implements transport.Responder.
func (q *QP) Serving() bool {
	switch q.state {
	case abi.QPStateRTR, abi.QPStateRTS, abi.QPStateSQD, abi.QPStateSQE:
		return true
	}
	return false
}

// Heard implements transport.Responder. It tells a driver that waits in RTR that it may move on.
func (q *QP) Heard() {
	if q.heard {
		return
	}
	q.heard = true
	if q.state == abi.QPStateRTR {
		q.owner.Event(abi.EventCommEst, q.number, 0, "")
	}
}

// Address implements transport.Responder.
func (q *QP) Address(srqn uint32) bool { return q.recv.address(srqn) }

// Place implements transport.Responder.
func (q *QP) Place(now vtime.Time, p *transport.Packet, data []byte) transport.Verdict {
	refusal, v, st := q.recv.place(p, data)
	switch {
	case refusal == transport.Accepted, refusal == transport.NotReady:
		return transport.Verdict{Refusal: refusal, Failed: st}
	case q.unreliable() && (v == nil || st != abi.WCLocProtErr && st != abi.WCLocQPOpErr):
		return transport.Verdict{Refusal: refusal} // the message is lost, and the next has its receive
	case q.inError && (v != nil || !p.TakesReceive()):
		// The message fails at both ends, and nothing else does.
		if st == abi.WCSuccess {
			st = abi.WCLocAccessErr
		}
		return transport.Verdict{Refusal: refusal, Alone: true, Failed: st}
	}
	if v != nil && st != abi.WCSuccess {
		q.recv.finish(now, v, st)
	}
	q.Refused(now, refusal)
	return transport.Verdict{Refusal: refusal}
}

// Complete implements transport.Responder.
func (q *QP) Complete(now vtime.Time, p *transport.Packet, n uint64, failed abi.WCStatus) {
	if q.owner.Trace != nil {
		q.recv.noteReceiving(q.conn.ID(), p.ID)
	}
	q.recv.complete(now, p, n, failed)
}

// Refused implements transport.Responder: it moves the QP to ERR because a request of the peer was
// refused.
func (q *QP) Refused(now vtime.Time, why transport.Refusal) {
	typ, st, reason := abi.EventQPFatal, abi.WCRemOpErr, "refused a request of the peer"
	switch {
	case why == transport.Sequence:
		typ, st, reason = abi.EventQPReqErr, abi.WCRemInvReqErr, "a request of the peer was out of sequence"
	case why == transport.Invalid:
		q.violated = true
		typ, st, reason = abi.EventQPReqErr, abi.WCRemInvReqErr, "the peer sent an invalid request"
	case why.OfMemory():
		typ, st, reason = abi.EventQPAccessErr, abi.WCRemAccessErr, "the peer asked for memory it may not access"
	case why == transport.NotReady:
		reason = "a message of the peer found no receive, and its wire does not let it wait"
	case why == transport.Operation:
		reason = "a request of the peer could not be carried out"
	}
	q.failAs(now, typ, st, reason)
}

// Read implements transport.Responder.
func (q *QP) Read(rkey uint32, addr uint64, n uint32) (transport.Memory, transport.Refusal) {
	return q.recv.read(rkey, addr, n)
}

// Atomic implements transport.Responder.
func (q *QP) Atomic(x *transport.Atomic) (original uint64, why transport.Refusal) {
	return q.recv.atomic(x)
}

// Receives implements transport.Responder.
func (q *QP) Receives() (n int, counted bool) { return q.recv.available() }

// RNRTimer implements transport.Responder.
func (q *QP) RNRTimer() uint8 { return q.attr.minRNRTimer }

// AnswerAt implements transport.Responder.
func (q *QP) AnswerAt(now vtime.Time) vtime.Time { return q.sched.AnswerAt(now) }

// Answered implements transport.Responder.
func (q *QP) Answered(n int) { q.sched.Answered(n) }

// Then what it does about its own requests.

// Gather implements transport.Requester.
func (q *QP) Gather(r *transport.Request, offset uint32, dst []byte) error {
	w := q.send.works.at(r.Slot)
	if w.WQE.Flags&abi.SendInline != 0 {
		copy(dst, w.Inline[offset:])
		return nil
	}
	return w.SGEs.Gather(w.at(offset), dst)
}

// Element implements transport.Requester.
func (q *QP) Element(r *transport.Request, offset uint32) (addr uint64, lkey, left uint32) {
	w := q.send.works.at(r.Slot)
	if offset >= w.Length {
		return 0, 0, 0
	}
	return w.SGEs.At(w.at(offset))
}

// Scatter implements transport.Requester.
func (q *QP) Scatter(r *transport.Request, offset uint32, src []byte) error {
	w := q.send.works.at(r.Slot)
	return w.SGEs.Scatter(w.at(offset), src)
}

// Unanswered implements transport.Requester. It starts a timer that fails the request, because no
// answer will come.
func (q *QP) Unanswered(now vtime.Time, r *transport.Request) {
	q.send.works.at(r.Slot).unanswered = true
	if !q.patience.Armed() && q.attr.sending.Timeout != 0 { // 0 is for ever
		q.shared.Timers.Set(&q.patience, q, now+max(q.RetryTime(), leastPatience))
	}
}

// PeerNotReady implements transport.Requester. An RNR retry count of 7 means no limit.
func (q *QP) PeerNotReady(now vtime.Time, r *transport.Request, times int) {
	if retry := int(q.attr.rnrRetry); retry < 7 && times > retry {
		if r.Status == abi.WCSuccess {
			r.Status = abi.WCRNRRetryExcErr
		}
		q.complete(now)
	}
}

// Done implements transport.Requester: it records the result of r and completes all works that can
// be completed.
func (q *QP) Done(now vtime.Time, r *transport.Request, st abi.WCStatus, vendor uint32) {
	if st != abi.WCSuccess && st != abi.WCLocProtErr && q.peer.leaving {
		st = abi.WCWRFlushErr
		if q.peer.wired {
			st = abi.WCRetryExcErr
		}
	}
	if st != abi.WCSuccess && r.Status == abi.WCSuccess {
		r.Status, r.Vendor = st, vendor
	}
	q.complete(now)
	q.drained(now)
	q.wake()
}

// Unblocked implements transport.Endpoint.
func (q *QP) Unblocked(vtime.Time) {
	q.blocked = false
	q.wake()
}

// Ended implements transport.Endpoint: the transport has given the connection up.
func (q *QP) Ended(now vtime.Time, st abi.WCStatus, reason string) {
	q.lingering.Remove()
	q.conn = nil
	if q.peer.wired && q.unreliable() {
		q.peer.left = true // what the QP sends is lost from now on
		q.wake()
		return
	}
	if q.peer.leaving && !q.peer.wired {
		q.enterErr(now)
	}
	q.fail(now, st, reason)
	q.peer.forget()
}

// Settle implements transport.Endpoint.
func (q *QP) Settle(now vtime.Time) { q.in.Settle(now) }

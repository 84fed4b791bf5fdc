package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// The states of a QP. An arrow without a name is a move by ModifyQP, by the tables of
// transitions.go. RESET and ERR can be reached from every state.
//
//	            Connect
//	         ┌───────────────────┐         drained by and by
//	RESET ─▶ INIT ─▶ RTR ─▶ RTS ◀──────▶ SQD
//	  ▲               │      │ ▲
//	  │               │      │ └──────── SQE   a send of a UD or UC QP failed: sends are flushed
//	  │               ▼      ▼
//	  └────────────── ERR ◀──── local or remote error, peer gone
//
// In ERR works are flushed in order, a few per turn, and the connection lingers so that refusals
// reach the peer. A QP in RESET has no connection; a move there writes no completions.

// fail moves the QP to ERR because of st and tells the driver.
func (q *QP) fail(now vtime.Time, st abi.WCStatus, reason string) {
	q.failAs(now, abi.EventQPFatal, st, reason)
}

// failAs does what fail does, with an event of type typ.
func (q *QP) failAs(now vtime.Time, typ abi.EventType, st abi.WCStatus, reason string) {
	if q.state == abi.QPStateErr || q.state == abi.QPStateReset {
		return
	}
	q.enterErr(now)
	q.owner.Stats.QPErrors++
	q.owner.Event(typ, q.number, uint32(st), reason)
}

// failSend stops sending because a work request completed with st. The QP continues to receive if
// no peer relies on its sends, as with datagrams and unreliable connections.
func (s *requester) failSend(now vtime.Time, st abi.WCStatus) {
	q := s.q
	if st == abi.WCWRFlushErr { // the peer is leaving, which is not an error
		q.enterErr(now)
		return
	}
	if !q.datagrams() && !q.unreliable() {
		q.fail(now, st, "send work request failed: "+st.String())
		return
	}
	if q.state == abi.QPStateRTS || q.state == abi.QPStateSQD {
		q.state = abi.QPStateSQE
		s.polled.Remove()
		s.dropRequests()
		q.wake()
	}
}

// enterErr moves the QP to ERR. Transactions in flight lose their data. The following turns flush
// the work requests.
func (q *QP) enterErr(now vtime.Time) {
	if q.state == abi.QPStateErr {
		return
	}
	q.state = abi.QPStateErr
	q.sched.Freed() // it may have been offered credit
	q.shared.Timers.Stop(&q.patience)
	q.polled.Remove() // flushing reads and arms the queue
	q.dropRequests()
	if q.conn != nil {
		q.lingerUntil = now + q.shared.Linger
		q.shared.lingering.PushBack(&q.lingering, q)
	}
	q.wake()
}

// reset moves the QP to RESET from any state.
func (q *QP) reset(now vtime.Time) {
	q.stopWork()
	q.peer.wired, q.peer.left = false, false
	q.leaveConn(now)
	q.sq.Reset()
	q.rq.Reset()
	q.windows.unbindAll()
	q.attr = defaultAttributes(q.owner.Limits())
	q.state = abi.QPStateReset
}

// stopWork drops all work requests, sent and received.
func (q *QP) stopWork() {
	q.req.forget()
	q.rsp.drop()
	q.Queued.Remove()
	q.polled.Remove()
	q.shared.Timers.Stop(&q.patience)
	q.waitCredit = false
}

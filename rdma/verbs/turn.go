package verbs

import (
	"errors"
	"fmt"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Prefetch prefetches the memory of the connection that a turn needs.
func (q *QP) Prefetch() {
	if q.conn != nil {
		q.conn.Prefetch()
	}
}

// Turn does the QP's share of work: new requests in RTS, the rest of those already started in SQD,
// flushing in ERR and SQE. It reports whether more work is left that can continue now.
func (q *QP) Turn(now vtime.Time) (more bool) {
	if !q.owner.Working() || q.owner.stuck(q.number) {
		return false
	}
	switch q.state {
	case abi.QPStateRTS, abi.QPStateSQD:
		if q.conn == nil && !q.datagrams() {
			return q.awaitPeer(now)
		}
		return q.issue(now)
	case abi.QPStateSQE:
		return q.send.flush(now)
	case abi.QPStateErr:
		send, recv := q.send.flush(now), q.recv.flush(now)
		return (send || recv) && q.owner.Working() && q.state == abi.QPStateErr
	}
	return false
}

// issue starts works and gives their packets to the connection until the turn's quantum is used up
// or the QP has to wait. It returns true if it stopped because of the quantum, or found new work
// when it armed the queue.
func (q *QP) issue(now vtime.Time) (more bool) {
	ops, bytes := q.shared.TurnOps, q.shared.TurnBytes
	more = true
	for ops > 0 && bytes > 0 && q.sched.May(now) {
		n, started, ok := q.issuePacket(now)
		if started {
			ops--
		}
		if !ok {
			more = false
			break
		}
		bytes -= max(n, 1)
	}
	if r := &q.send.works; !more && q.state == abi.QPStateRTS && r.next == r.tail && r.tail-r.head < uint32(len(r.ring)) {
		return q.watch(now)
	}
	q.send.queue.Commit()
	return more
}

// tooLong reports whether the request breaks the size limit of the unordered mode (RDMA over Falcon
// §6.4): a message that takes a receive must fit one packet. The QP must have a connection.
func (q *QP) tooLong(w *SendWR) bool {
	return q.unordered && w.TakesReceive() && w.Length > uint32(q.longest())
}

// longest returns the most data in one packet, as far as drivers know: a connection may carry more
// than their largest path MTU.
func (q *QP) longest() int { return min(q.segment, MaxDatagram) }

// nextWork returns the next work to issue, nil if there is none.
func (q *QP) nextWork(now vtime.Time) *SendWR {
	works := &q.send.works
	if works.next == works.tail {
		if works.tail-works.head == uint32(len(works.ring)) || q.state != abi.QPStateRTS {
			return nil // a completion or a change of state wakes the QP
		}
		if _, ok := q.send.read(now); !ok {
			return nil
		}
	}
	return works.at(works.next)
}

// issuePacket issues one packet of the next work and returns its number of data bytes. started
// reports whether it was the first packet. ok is false if nothing can be issued now.
func (q *QP) issuePacket(now vtime.Time) (n int, started, ok bool) {
	w := q.nextWork(now)
	switch {
	case w == nil:
		return 0, false, false
	case q.datagrams() && w.Status == abi.WCSuccess && q.state == abi.QPStateRTS:
		return q.issueDatagram(now, w)
	case !w.started:
		if pass, ok := q.admitWork(now, w); !pass {
			return 0, ok, ok
		}
		w.started, started = true, true
		if w.Pulls() {
			q.send.works.reads++
		}
	}
	n, err := q.conn.Issue(now, &w.Request)
	if err != nil {
		q.notIssued(now, err)
		return 0, started, false
	}
	if w.Pulls() {
		q.sched.Spend(0)
	} else {
		q.sched.Spend(n)
	}
	if w.Issued {
		q.send.works.next++
	}
	return n, started, true
}

// notIssued handles the error of a connection that did not take a packet.
func (q *QP) notIssued(now vtime.Time, err error) {
	switch {
	case errors.Is(err, transport.ErrBlocked):
		q.blocked = true
	case errors.Is(err, transport.ErrFailed):
		q.complete(now)
	} // in all other cases an event wakes the QP or ends it
}

// admitWork checks the next work, of which nothing was issued yet. pass means that the transport
// may issue it. A work that concerns this side only, or that has failed, ends here; ok then reports
// whether the next work may follow at once.
func (q *QP) admitWork(now vtime.Time, w *SendWR) (pass, ok bool) {
	works := &q.send.works
	if q.state != abi.QPStateRTS {
		return false, false // SQD
	}
	if q.tooLong(w) && w.Status == abi.WCSuccess {
		w.Status = abi.WCLocLenErr
		q.send.queue.mistaken(w.Index, w.Status, because("it has %d bytes; without ordering, a message that takes a receive has one packet, at most %d", uint64(w.Length), uint64(q.longest())))
	}
	if w.Pulls() && q.attr.maxRdAtomic == 0 && w.Status == abi.WCSuccess { // it was read before the peer said that it serves none
		w.Status = abi.WCLocQPOpErr
	}
	switch {
	case w.Status != abi.WCSuccess:
		// It fails when its turn comes. Works behind it are not started, unless requests complete
		// in error.
		if w.Issued {
			return false, false
		}
		w.Issued = true
		if q.inError {
			works.next++
		}
		q.complete(now)
		return false, q.inError
	case w.WQE.Flags&abi.SendFence != 0 && works.reads > 0, w.Pulls() && works.reads >= int(q.attr.maxRdAtomic):
		return false, false
	case w.local():
		return false, q.issueLocal(now, w)
	}
	return true, true
}

// issueLocal carries out a request that concerns this side only. A LocalInv waits until no earlier
// request can use its key. It reports whether the next request may follow at once.
func (q *QP) issueLocal(now vtime.Time, w *SendWR) bool {
	works := &q.send.works
	if w.WQE.Opcode == abi.OpLocalInv && works.head != works.next {
		return false // a completion wakes the QP
	}
	q.send.runLocal(w)
	goOn := w.Status == abi.WCSuccess || q.inError
	if goOn {
		works.next++
	}
	q.complete(now)
	return goOn
}

// complete completes finished works. A failure that the QP does not survive moves it to ERR or SQE.
func (q *QP) complete(now vtime.Time) {
	if st := q.send.complete(now); st != abi.WCSuccess {
		q.failSend(now, st)
	}
}

// watch is called when the send queue is empty. The queue is polled for a while, or armed at once.
// watch reports whether there is an entry after all.
func (q *QP) watch(now vtime.Time) (more bool) {
	if !q.owner.eventIndex {
		return q.send.queue.Sleep()
	}
	q.send.queue.Commit()
	q.pollUntil = now + q.shared.PollTime
	q.shared.polled.PushBack(&q.polled, q)
	return false
}

// The driver of a wired QP takes it to RTR itself; the peer's number and GID were exchanged by
// other means. Meanwhile the device makes the connection. Until it exists, and after the peer has
// left, the QP behaves as if its packets were lost: it may stay in RTR or RTS for ever, but posted
// work fails after a while. On an unreliable connection posted work is lost after that while
// instead, and at once when the peer has left.

// awaitPeer does the turn of a wired QP without a connection. Works that concern this side only, or
// fail by themselves, need no peer. It reports whether there may be more of these. If there is no
// work, it requests a doorbell.
func (q *QP) awaitPeer(now vtime.Time) (more bool) {
	loses := q.unreliable() && q.peer.left
	if loses {
		q.loseStarted(now)
	}
	for range q.shared.TurnOps {
		w := q.nextWork(now)
		switch {
		case w == nil:
			return q.send.queue.Sleep() && q.state == abi.QPStateRTS
		case loses && q.state == abi.QPStateRTS && w.Status == abi.WCSuccess && !w.local():
			w.started = true
			q.loseStarted(now)
			continue
		case !w.local() && w.Status == abi.WCSuccess:
			q.send.queue.Commit()
			q.awaitSend(now)
			return false
		}
		if _, ok := q.admitWork(now, w); !ok {
			return false // flushed, or a completion wakes the QP
		}
	}
	return true
}

// leastPatience is how long posted work waits at least for the peer's queue pair to get ready. Drivers
// in guests are slower than the timeouts of verbs programs, which expect hardware.
const leastPatience vtime.Time = 8e9

// awaitSend limits how long work for the peer waits.
func (q *QP) awaitSend(now vtime.Time) {
	switch {
	case q.state != abi.QPStateRTS || q.patience.Armed() || !q.owner.Working():
	case q.unreliable():
		q.shared.Timers.Set(&q.patience, q, now+leastPatience)
	case q.peer.left:
		q.failAlone(now, "its queue pair has gone")
	case q.attr.sending.Timeout != 0: // 0 is for ever
		q.shared.Timers.Set(&q.patience, q, now+max(q.RetryTime(), leastPatience))
	}
}

// Due is called when the QP has waited long enough: for a peer that is not there, or for a response
// that was dropped.
func (q *QP) Due(now vtime.Time) {
	switch {
	case q.unreliable():
		q.peer.left = true // or it was never there
		q.wake()
	case q.conn == nil:
		q.failAlone(now, "it did not get ready to receive")
	default:
		q.failUnanswered(now)
	}
	q.in.Settle(now)
}

// loseStarted ends the started works of an unreliable connection that has no peer: they count as
// sent.
func (q *QP) loseStarted(now vtime.Time) {
	works := &q.send.works
	if works.next != works.tail && works.at(works.next).started {
		works.next++
	}
	for i := works.head; i != works.next; i++ {
		w := works.at(i)
		w.Issued, w.Pending = true, 0
	}
	q.complete(now)
	q.drained(now)
}

// failUnanswered fails the oldest work request whose response was lost.
func (q *QP) failUnanswered(now vtime.Time) {
	works := &q.send.works
	for i := works.head; i != works.tail; i++ {
		if w := works.at(i); w.unanswered && !w.done {
			q.send.report(now, w, abi.WCRespTimeoutErr)
			w.done = true
			q.send.works.retireDone()
			q.fail(now, abi.WCRespTimeoutErr, "a response was not for this queue pair")
			return
		}
	}
}

// failAlone fails the oldest work request because there is no peer.
func (q *QP) failAlone(now vtime.Time, reason string) {
	works := &q.send.works
	if works.head == works.tail {
		if _, ok := q.send.read(now); !ok {
			return
		}
	}
	q.send.finish(now, abi.WCRetryExcErr)
	q.fail(now, abi.WCRetryExcErr, fmt.Sprintf("no answer from QP %#x: %s", q.peer.number, reason))
}

// drained tells the driver that no send is outstanding any more, once per move to SQD and only if
// the driver asked for it. The completions of the sends are written before (DEV-908), also those
// that Faults held back.
func (q *QP) drained(now vtime.Time) {
	if q.state != abi.QPStateSQD || !q.sqdNotify || q.send.works.begun() {
		return
	}
	q.sqdNotify = false
	if q.send.cq != nil { // an XRC target has none
		q.send.cq.Release(now)
	}
	q.owner.Event(abi.EventSQDrained, q.number, 0, "")
}

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
		return q.flushSends(now)
	case abi.QPStateErr:
		// In the order of posting: first those already read, then those still in guest memory.
		send, recv := q.flushSends(now), q.flushRecvs(now)
		return (send || recv) && q.owner.Working() && q.state == abi.QPStateErr
	}
	return false
}

// issue starts works and gives their packets to the connection until the turn's quantum is used up
// or the QP has to wait. It returns true if it stopped because of the quantum, or found new work
// when it armed the queue.
func (s *requester) issue(now vtime.Time) (more bool) {
	q := s.q
	ops, bytes := q.shared.TurnOps, q.shared.TurnBytes
	more = true
	for ops > 0 && bytes > 0 && q.sched.May(now) {
		n, started, ok := s.issuePacket(now)
		if started {
			ops--
		}
		if !ok {
			more = false
			break
		}
		bytes -= max(n, 1)
	}
	if r := &s.req; !more && q.state == abi.QPStateRTS && r.next == r.tail && r.tail-r.head < uint32(len(r.works)) {
		return s.watch(now)
	}
	s.sq.Commit()
	return more
}

// nextWork returns the next work to issue, nil if there is none.
func (s *requester) nextWork(now vtime.Time) *SendWR {
	q := s.q
	r := &s.req
	if r.next == r.tail {
		if r.tail-r.head == uint32(len(r.works)) || q.state != abi.QPStateRTS {
			return nil // a completion or a change of state wakes the QP
		}
		if _, ok := s.fetch(now); !ok {
			return nil
		}
	}
	return r.work(r.next)
}

// issuePacket issues one packet of the next work and returns its number of data bytes. started
// reports whether it was the first packet. ok is false if nothing can be issued now.
func (s *requester) issuePacket(now vtime.Time) (n int, started, ok bool) {
	q := s.q
	w := s.nextWork(now)
	switch {
	case w == nil:
		return 0, false, false
	case q.datagrams() && w.Status == abi.WCSuccess && q.state == abi.QPStateRTS:
		return s.sender.issue(now, w)
	case !w.started:
		if pass, ok := s.admitWork(now, w); !pass {
			return 0, ok, ok
		}
		w.started, started = true, true
		if w.Pulls() {
			s.req.reads++
		}
	}
	n, err := q.conn.Issue(now, &w.Request)
	if err != nil {
		s.notIssued(now, err)
		return 0, started, false
	}
	if w.Pulls() {
		q.sched.Spend(0)
	} else {
		q.sched.Spend(n)
	}
	if w.Issued {
		s.req.next++
	}
	return n, started, true
}

// notIssued handles the error of a connection that did not take a packet.
func (s *requester) notIssued(now vtime.Time, err error) {
	switch {
	case errors.Is(err, transport.ErrBlocked):
		s.waitCredit = true
	case errors.Is(err, transport.ErrFailed):
		s.complete(now)
	} // in all other cases an event wakes the QP or ends it
}

// admitWork checks the next work, of which nothing was issued yet. pass means that the transport
// may issue it. A work that concerns this side only, or that has failed, ends here; ok then reports
// whether the next work may follow at once.
func (s *requester) admitWork(now vtime.Time, w *SendWR) (pass, ok bool) {
	q := s.q
	r := &s.req
	if q.state != abi.QPStateRTS {
		return false, false // SQD
	}
	if s.tooLong(w) && w.Status == abi.WCSuccess {
		w.Status = abi.WCLocLenErr
		s.sq.mistaken(w.Index, w.Status, because("it has %d bytes; without ordering, a message that takes a receive has one packet, at most %d", uint64(w.Length), uint64(q.segment)))
	}
	switch {
	case w.Status != abi.WCSuccess:
		// It fails when its turn comes. Works behind it are not started, unless requests complete
		// in error.
		if w.Issued {
			return false, false
		}
		w.Issued = true
		if q.cie {
			r.next++
		}
		s.complete(now)
		return false, q.cie
	case w.WQE.Flags&abi.SendFence != 0 && r.reads > 0, w.Pulls() && r.reads >= int(q.attr.maxRdAtomic):
		return false, false
	case w.inside():
		return false, s.issueInside(now, w)
	}
	return true, true
}

// issueInside carries out a request that concerns this side only. A LocalInv waits until no earlier
// request can use its key. It reports whether the next request may follow at once.
func (s *requester) issueInside(now vtime.Time, w *SendWR) bool {
	q := s.q
	r := &s.req
	switch w.WQE.Opcode {
	case abi.OpLocalInv:
		if r.head != r.next {
			return false // a completion wakes the QP
		}
		w.Status = q.regions.invalidate(q.pd, &q.windows, w.WQE.Imm)
	case abi.OpRegMR:
		w.Status = q.regions.supply(q.pd, w.WQE.RKey, &w.reg)
	default:
		w.Status = q.regions.bind(q.pd, &q.windows, w.WQE.RKey, &w.bind)
	}
	if w.Status != abi.WCSuccess {
		s.sq.mistaken(w.Index, w.Status, w.notInside())
	}
	w.started, w.Issued = true, true
	goOn := w.Status == abi.WCSuccess || q.cie
	if goOn {
		r.next++
	}
	s.complete(now)
	return goOn
}

// watch is called when the send queue is empty. The queue is polled for a while, or armed at once.
// watch reports whether there is an entry after all.
func (s *requester) watch(now vtime.Time) (more bool) {
	q := s.q
	if !q.owner.eventIndex {
		return s.sq.Sleep()
	}
	s.sq.Commit()
	s.pollUntil = now + q.shared.PollTime
	q.shared.polled.PushBack(&s.polled, q)
	return false
}

// awaitPeer does the turn of a wired QP without a connection. Works that concern this side only, or
// fail by themselves, need no peer. It reports whether there may be more of these. If there is no
// work, it requests a doorbell.
func (s *requester) awaitPeer(now vtime.Time) (more bool) {
	q := s.q
	loses := q.unreliable() && q.peer.left
	if loses {
		s.loseBegun(now)
	}
	for range q.shared.TurnOps {
		w := s.nextWork(now)
		switch {
		case w == nil:
			return s.sq.Sleep() && q.state == abi.QPStateRTS
		case loses && q.state == abi.QPStateRTS && w.Status == abi.WCSuccess && !w.inside():
			w.started = true
			s.loseBegun(now)
			continue
		case !w.inside() && w.Status == abi.WCSuccess:
			s.sq.Commit()
			s.awaitSend(now)
			return false
		}
		if _, ok := s.admitWork(now, w); !ok {
			return false // flushed, or a completion wakes the QP
		}
	}
	return true
}

// awaitSend limits how long work for the peer waits.
func (s *requester) awaitSend(now vtime.Time) {
	q := s.q
	switch {
	case q.state != abi.QPStateRTS || s.patience.Armed() || !q.owner.Working():
	case q.unreliable():
		q.shared.Timers.Set(&s.patience, q, now+patience)
	case q.peer.left:
		s.failAlone(now, "its queue pair has gone")
	case q.attr.sending.Timeout != 0: // 0 is for ever
		q.shared.Timers.Set(&s.patience, q, now+max(q.RetryTime(), patience))
	}
}

// Due is called when the QP has waited long enough: for a peer that is not there, or for a response
// that was dropped.
func (s *requester) Due(now vtime.Time) {
	q := s.q
	switch {
	case q.unreliable():
		q.peer.left = true // or it was never there
		q.wake()
	case q.conn == nil:
		s.failAlone(now, "it did not get ready to receive")
	default:
		s.failUnanswered(now)
	}
	q.in.Settle(now)
}

// loseBegun ends the started works of an unreliable connection that has no peer: they count as
// sent.
func (s *requester) loseBegun(now vtime.Time) {
	r := &s.req
	if r.next != r.tail && r.work(r.next).started {
		r.next++
	}
	for i := r.head; i != r.next; i++ {
		w := r.work(i)
		w.Issued, w.Pending = true, 0
	}
	s.complete(now)
	s.drained(now)
}

// failUnanswered fails the oldest work request whose response was lost.
func (s *requester) failUnanswered(now vtime.Time) {
	q := s.q
	r := &s.req
	for i := r.head; i != r.tail; i++ {
		if w := r.work(i); w.unanswered && !w.done {
			s.report(now, w, abi.WCRespTimeoutErr)
			w.done = true
			s.req.retireDone()
			q.fail(now, abi.WCRespTimeoutErr, "a response was not for this queue pair")
			return
		}
	}
}

// failAlone fails the oldest work request because there is no peer.
func (s *requester) failAlone(now vtime.Time, reason string) {
	q := s.q
	r := &s.req
	if r.head == r.tail {
		if _, ok := s.fetch(now); !ok {
			return
		}
	}
	s.finish(now, abi.WCRetryExcErr)
	q.fail(now, abi.WCRetryExcErr, fmt.Sprintf("no answer from QP %#x: %s", q.peer.number, reason))
}

// drained tells the driver that no send is outstanding any more, once per move to SQD and only if
// the driver asked for it. The completions of the sends are written before (DEV-908), also those
// that Faults held back.
func (s *requester) drained(now vtime.Time) {
	q := s.q
	if q.state != abi.QPStateSQD || !s.sqdNotify || s.req.begun() {
		return
	}
	s.sqdNotify = false
	if s.sendCQ != nil { // an XRC target has none
		s.sendCQ.Release(now)
	}
	q.owner.Event(abi.EventSQDrained, q.number, 0, "")
}

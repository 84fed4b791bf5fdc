package verbs

import (
	"fmt"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// The driver of a wired QP takes it to RTR itself; the peer's number and GID were exchanged by
// other means. Meanwhile the device makes the connection. Until it exists, and after the peer has
// left, the QP behaves as if its packets were lost: it may stay in RTR or RTS for ever, but posted
// work fails after a while. On an unreliable connection posted work is lost after that while
// instead, and at once when the peer has left.

// Wired reports whether the driver named the peer, and returns what it named.
func (q *QP) Wired() (peerQPN uint32, peerGID [16]byte, ok bool) {
	return q.peer.number, q.peer.gid, q.peer.wired
}

// Connected reports whether the QP has a connection.
func (q *QP) Connected() bool { return q.conn != nil }

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

// PeerLeft is called for a wired QP when the peer's end of the connection is gone. Unlike after
// Disconnected, the verbs program learns this only when it sends, and keeps what it received.
func (q *QP) PeerLeft(now vtime.Time) {
	if !q.Serving() {
		q.Disconnected(now)
		return
	}
	q.leaveConn(now)
	q.peer.left = true
	if r := &q.req; r.head != r.tail && !q.unreliable() {
		q.failAlone(now, "its queue pair has gone")
	} else {
		q.wake()
	}
	q.in.Settle(now)
}

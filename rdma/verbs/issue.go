package verbs

import (
	"errors"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

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

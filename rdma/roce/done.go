package roce

import (
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// retire removes the first entry and tells the queue pair how it ended.
func (s *requester) retire(now transport.Time, st abi.WCStatus, vendor uint32) {
	s.returnCredits(s.entries.At(0))
	e := s.entries.Pop()
	if s.account.Trace != nil && !s.terms.Unreliable && (st == abi.WCSuccess || vendor != 0) { // otherwise nobody answered it
		s.noteAnswered(e)
	}
	r, left := e.r, e.packets-e.got
	e.r = nil
	if s.sent > 0 {
		s.sent--
		s.flying -= left
	}
	if e.pulls() {
		s.pulls--
	} else {
		s.pushes--
	}
	r.Pending -= left
	s.user.Done(now, r, st, vendor)
}

// retireBefore completes the packets with data before psn, up to a READ or atomic whose response is
// incomplete. lost reports whether there was one.
func (s *requester) retireBefore(now transport.Time, psn wire.PSN) (n int, lost bool) {
	for s.entries.Len() > 0 {
		e := s.entries.At(0)
		switch {
		case e.next().Sub(psn) >= 0:
			return n, false
		case e.pulls():
			return n, true
		}
		n++
		s.retire(now, abi.WCSuccess, 0)
	}
	return n, false
}

// fail ends the first entry with an error, after which the connection sends nothing more.
func (s *requester) fail(now transport.Time, st abi.WCStatus, vendor uint32) {
	s.stop(&s.timer)
	s.dead = !s.terms.Unreliable // its queue pair may go on (IBA §10.3.1.6)
	s.retire(now, st, vendor)
}

// failFront ends the first entry if its data could not be read. It reports whether the entry is
// still there.
func (s *requester) failFront(now transport.Time) bool {
	if s.entries.Len() == 0 {
		return false
	}
	e := s.entries.At(0)
	if e.failed == abi.WCSuccess {
		return true
	}
	s.fail(now, e.failed, 0)
	return false
}

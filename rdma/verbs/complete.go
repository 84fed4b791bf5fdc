package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Gather implements transport.Requester.
func (s *requester) Gather(r *transport.Request, offset uint32, dst []byte) error {
	w := s.req.work(r.Slot)
	if w.WQE.Flags&abi.SendInline != 0 {
		copy(dst, w.Inline[offset:])
		return nil
	}
	return w.SGEs.Gather(w.at(offset), dst)
}

// Element implements transport.Requester.
func (s *requester) Element(r *transport.Request, offset uint32) (addr uint64, lkey, left uint32) {
	w := s.req.work(r.Slot)
	if offset >= w.Length {
		return 0, 0, 0
	}
	return w.SGEs.At(w.at(offset))
}

// Scatter implements transport.Requester.
func (s *requester) Scatter(r *transport.Request, offset uint32, src []byte) error {
	w := s.req.work(r.Slot)
	return w.SGEs.Scatter(w.at(offset), src)
}

// Unanswered implements transport.Requester. It starts a timer that fails the request, because no
// answer will come.
func (s *requester) Unanswered(now vtime.Time, r *transport.Request) {
	q := s.q
	s.req.work(r.Slot).unanswered = true
	if !s.patience.Armed() && q.attr.sending.Timeout != 0 { // 0 is for ever
		q.shared.Timers.Set(&s.patience, q, now+max(q.RetryTime(), patience))
	}
}

// Done implements transport.Requester: it records the result of r and completes all works that can
// be completed.
func (s *requester) Done(now vtime.Time, r *transport.Request, st abi.WCStatus, vendor uint32) {
	q := s.q
	if st != abi.WCSuccess && st != abi.WCLocProtErr && q.peer.leaving {
		st = abi.WCWRFlushErr
		if q.peer.wired {
			st = abi.WCRetryExcErr
		}
	}
	if st != abi.WCSuccess && r.Status == abi.WCSuccess {
		r.Status, r.Vendor = st, vendor
	}
	s.complete(now)
	s.drained(now)
	q.wake()
}

// PeerNotReady implements transport.Requester. An RNR retry count of 7 means no limit.
func (s *requester) PeerNotReady(now vtime.Time, r *transport.Request, times int) {
	q := s.q
	if retry := int(q.attr.rnrRetry); retry < 7 && times > retry {
		if r.Status == abi.WCSuccess {
			r.Status = abi.WCRNRRetryExcErr
		}
		s.complete(now)
	}
}

// complete completes finished works in order, up to the first that is not finished; in unordered
// mode it completes all finished works. The first work that failed moves the QP to ERR or SQE,
// unless its requests complete in error.
func (s *requester) complete(now vtime.Time) {
	q := s.q
	r := &s.req
	for i := r.head; i != r.tail; i++ {
		w := r.work(i)
		if w.done {
			continue
		}
		over := w.Issued && w.Pending == 0
		if over && w.WQE.Opcode == abi.OpReadInv && w.Status == abi.WCSuccess {
			if w.Status = q.regions.invalidate(q.pd, &q.windows, w.WQE.Imm); w.Status != abi.WCSuccess {
				s.sq.mistaken(w.Index, w.Status, because("the key to invalidate, %#x, was valid when the READ began, and is not now", uint64(w.WQE.Imm)))
			}
		}
		switch {
		case w.Status != abi.WCSuccess && (w.Issued || w.started) && !s.survives(w):
			st := w.Status
			s.report(now, w, st)
			w.done = true
			s.req.retireDone()
			s.failSend(now, st)
			return
		case over:
			if w.Pulls() && w.started {
				r.reads--
			}
			s.report(now, w, w.Status)
			w.done = true
			if !q.unordered {
				s.req.retireDone()
			}
		case !q.unordered:
			return
		}
	}
	s.req.retireDone()
}

// survives reports whether the QP continues after the failure of w. It does not if its requests do
// not complete in error, nor if the transport gave up or lost its position.
func (s *requester) survives(w *SendWR) bool {
	q := s.q
	switch w.Status {
	case abi.WCRetryExcErr, abi.WCRNRRetryExcErr, abi.WCRespTimeoutErr, abi.WCBadRespErr, abi.WCGeneralErr:
		return false
	}
	return q.cie
}

// finish removes the work at head from the ring. It writes a completion, unless the work has one
// already or succeeded unsignaled.
func (s *requester) finish(now vtime.Time, st abi.WCStatus) {
	w := s.req.retire()
	if !w.done {
		s.report(now, w, st)
	}
	s.req.release(w)
}

// report writes the completion of w, unless it succeeded unsignaled.
func (s *requester) report(now vtime.Time, w *SendWR, st abi.WCStatus) {
	q := s.q
	if st == abi.WCSuccess && !s.sigAll && w.WQE.Flags&abi.SendSignaled == 0 {
		if q.owner.Trace != nil {
			s.noteSilent(w)
		}
		return
	}
	if q.owner.Trace != nil {
		s.noteCompleting(w)
	}
	cqe := abi.CQE{
		WRID: w.WQE.WRID, QPN: q.number, SrcQP: q.peer.number, Status: st, Opcode: WCOpcode(w.WQE.Opcode), VendorErr: w.Vendor,
	}
	if st == abi.WCSuccess && w.Pulls() {
		cqe.ByteLen = w.Length
	}
	if st == abi.WCSuccess && w.WQE.Opcode == abi.OpReadInv {
		cqe.Flags, cqe.Imm = abi.WCFlagInv, w.WQE.Imm
	}
	s.sendCQ.post(now, &cqe, false)
}

package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// fetch reads the next entry of the send queue into its ring slot. ok is false if there is none.
func (s *requester) fetch(now vtime.Time) (w *SendWR, ok bool) {
	q := s.q
	b, ok := s.sq.Next(q.shared.entry[:])
	if !ok {
		return nil, false
	}
	r := &s.req
	w = r.add()
	q.owner.Stats.Posted++
	w.Index = s.sq.Index() - 1
	w.WQE.Unmarshal(b)
	var why Reason
	w.Status, why = s.check(w, b[abi.SendWQEHeader:])
	if q.datagrams() && w.Status == abi.WCSuccess {
		w.Status, why = s.sender.check(now, w, b)
	}
	mistaken := w.Status != abi.WCSuccess
	if q.owner.Faults() != nil && w.Status == abi.WCSuccess {
		w.Status = q.owner.Faults().Work(q.number, w.WQE.Opcode)
	}
	if q.owner.strict && w.reserved(b) {
		s.sq.Broke(abi.DRV102, b)
	}
	if clause := s.brokenBy(w); clause != 0 {
		s.sq.Broke(clause, b)
	} else if mistaken {
		s.sq.mistaken(w.Index, w.Status, why)
	}
	if q.owner.Trace != nil {
		s.noteRead(w)
	}
	return w, true
}

// check completes w from the rest of its entry and returns what is wrong with it. The entry in
// shared memory is not read again.
func (s *requester) check(w *SendWR, rest []byte) (abi.WCStatus, Reason) {
	q := s.q
	x := &w.WQE
	var need uint32
	op := uint64(x.Opcode)
	if q.unreliable() && !carries(x.Opcode) {
		return abi.WCLocQPOpErr, because("opcode %d is none of an unreliable connection", op)
	}
	switch x.Opcode {
	case abi.OpSend, abi.OpSendImm, abi.OpSendInv, abi.OpWrite, abi.OpWriteImm:
	case abi.OpRead, abi.OpCmpSwap, abi.OpFetchAdd, abi.OpMaskedCmpSwap, abi.OpMaskedFetchAdd:
		if q.attr.maxRdAtomic == 0 {
			return abi.WCLocQPOpErr, because("opcode %d is a READ or an atomic, and the QP's max_rd_atomic is 0", op)
		}
		need = abi.AccessLocalWrite
	case abi.OpReadInv:
		if q.attr.maxRdAtomic == 0 {
			return abi.WCLocQPOpErr, because("opcode %d is a READ or an atomic, and the QP's max_rd_atomic is 0", op)
		}
		if !q.regions.Names(q.pd, x.Imm) {
			return abi.WCLocQPOpErr, because("the key to invalidate, %#x, names no region of the QP's protection domain", uint64(x.Imm))
		}
		need = abi.AccessLocalWrite
	case abi.OpAtomicWrite:
		return w.word()
	case abi.OpRegMR:
		if !s.sq.privileged {
			return abi.WCLocQPOpErr, because("opcode %d registers memory, and the QP is not privileged", op)
		}
		return w.local(rest)
	case abi.OpLocalInv, abi.OpBindMW:
		return w.local(rest)
	default:
		return abi.WCLocQPOpErr, because("opcode %d is unknown", op)
	}
	if x.Flags&abi.SendInline != 0 {
		switch {
		case need != 0:
			return abi.WCLocQPOpErr, because("opcode %d cannot be inline: its data comes in", op)
		case x.NumSGE != 0:
			return abi.WCLocQPOpErr, because("it is inline and has %d SGEs", uint64(x.NumSGE))
		case x.InlineLen > uint32(s.req.maxInline):
			return abi.WCLocLenErr, because("it has %d bytes inline, and the QP was created for %d", uint64(x.InlineLen), uint64(s.req.maxInline))
		}
		w.Inline = append(w.Inline, rest[:x.InlineLen]...)
		w.Length = x.InlineLen
		return abi.WCSuccess, Reason{}
	}
	if int(x.NumSGE) > s.req.maxSGE {
		return abi.WCLocQPOpErr, because("it has %d SGEs, and the QP was created for %d", uint64(x.NumSGE), uint64(s.req.maxSGE))
	}
	if x.Opcode == abi.OpMaskedCmpSwap || x.Opcode == abi.OpMaskedFetchAdd {
		if x.NumSGE != 1 { // with more, not every entry has room for them behind the masks
			return abi.WCLocLenErr, because("a masked atomic has one SGE, not %d", uint64(x.NumSGE))
		}
		w.Masks.Unmarshal(rest)
		rest = rest[abi.AtomicMasksSize:]
	}
	var total uint64
	var ok bool
	if w.SGEs, total, ok = q.regions.SGEs(q.pd, s.sq.privileged, w.SGEs, rest, int(x.NumSGE), need); !ok {
		return abi.WCLocProtErr, q.regions.wrongSGE(q.pd, s.sq.privileged, rest, int(x.NumSGE), need)
	}
	if total > maxMessage {
		return abi.WCLocLenErr, because("it has %d bytes, a message at most %d", total, maxMessage)
	}
	w.Length = uint32(total)
	if w.Atomic() && (len(w.SGEs) != 1 || w.Length != 8) {
		return abi.WCLocLenErr, because("the result of an atomic is 8 bytes in one SGE, not %d in %d", total, uint64(len(w.SGEs)))
	}
	return abi.WCSuccess, Reason{}
}

// carries reports whether an unreliable connection supports an operation (IBA table 38, §10.7.2.2):
// it has no operation that returns data and cannot invalidate a key of the peer.
func carries(op abi.Opcode) bool {
	switch op {
	case abi.OpSend, abi.OpSendImm, abi.OpWrite, abi.OpWriteImm, abi.OpLocalInv, abi.OpBindMW, abi.OpRegMR:
		return true
	}
	return false
}

// reserved reports whether reserved bits of the entry are set.
func (w *SendWR) reserved(entry []byte) bool {
	rest := entry[abi.SendWQEHeader:]
	op := w.WQE.Opcode
	return w.WQE.Reserved(entry) || len(rest) >= parameters(op) && (op == abi.OpBindMW && w.bind.Reserved(rest) || op == abi.OpRegMR && w.reg.Reserved(rest))
}

// brokenBy returns the clause that an entry breaks by its form. Whether the objects that it names
// are valid is not a matter of the ABI.
func (s *requester) brokenBy(w *SendWR) abi.Clause {
	q := s.q
	x := &w.WQE
	masked := x.Opcode == abi.OpMaskedCmpSwap || x.Opcode == abi.OpMaskedFetchAdd
	switch {
	case (masked || x.Opcode == abi.OpAtomicWrite) && !q.owner.Extended():
		return abi.DRV103
	case q.unreliable() && !carries(x.Opcode):
		return abi.DRV960
	case x.Flags&abi.SendInline != 0 && x.InlineLen > uint32(s.req.maxInline), x.Flags&abi.SendInline == 0 && int(x.NumSGE) > s.req.maxSGE,
		parameters(x.Opcode) > max(int(s.sq.read)-abi.SendWQEHeader, 0):
		return abi.DRV608
	case masked && x.NumSGE != 1:
		return abi.DRV611
	}
	return 0
}

// tooLong reports whether the request breaks the size limit of the unordered mode (RDMA over Falcon
// §6.4): a message that takes a receive must fit one packet. The QP must have a connection, which
// determines the packet size.
func (s *requester) tooLong(w *SendWR) bool {
	q := s.q
	return q.unordered && w.TakesReceive() && w.Length > uint32(q.segment)
}

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

// noteEntries records that entries of the send queue up to index are available.
func (s *requester) noteEntries(kind trace.Kind, index uint32) {
	q := s.q
	if q.owner.traces(q.number) {
		q.owner.Trace.Add(&trace.Event{Kind: kind, Work: q.number, Index: index})
	}
}

// noteRead records that w was read.
func (s *requester) noteRead(w *SendWR) {
	q := s.q
	if q.owner.traces(q.number) {
		q.owner.Trace.Add(&trace.Event{Kind: trace.Read, Work: q.number, Index: w.Index, Op: uint8(w.WQE.Opcode), Arg: w.WQE.WRID, Extra: w.Length})
	}
}

// noteCompleting announces that the next CQE is that of w.
func (s *requester) noteCompleting(w *SendWR) {
	q := s.q
	if q.owner.traces(q.number) {
		q.owner.Trace.Completing(&trace.Event{Kind: trace.Completed, Work: q.number, Index: w.Index})
	}
}

// noteSilent records that w is complete and gets no CQE.
func (s *requester) noteSilent(w *SendWR) {
	q := s.q
	if q.owner.traces(q.number) {
		q.owner.Trace.Add(&trace.Event{Kind: trace.Completed, Work: q.number, Index: w.Index, Flags: trace.Silent})
	}
}

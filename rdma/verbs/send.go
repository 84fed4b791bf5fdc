package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// sender is the half of a queue pair that carries out its driver's requests: it reads and checks
// them, keeps them until they are complete, and reports them. When they go to the connection is
// decided in turn.go.
type sender struct {
	half
	cq        *CQ
	queue     WorkQueue
	works     sendRing
	signalAll bool
	unordered bool // works complete in any order

	// For datagrams:
	ahs     *AHs
	ordered bool
	lastAH  *AH // the device's own, of the last datagram whose entry contained its address
}

// read takes the next entry of the send queue into the ring. ok is false if there is none.
func (s *sender) read(now vtime.Time) (w *SendWR, ok bool) {
	b, ok := s.queue.Next(s.shared.entry[:])
	if !ok {
		return nil, false
	}
	w = s.works.add()
	s.owner.Stats.Posted++
	w.Index = s.queue.Index() - 1
	w.WQE.Unmarshal(b)
	var why Reason
	w.Status, why = s.checkWR(w, b[abi.SendWQEHeader:])
	if isDatagram(s.typ) && w.Status == abi.WCSuccess {
		w.Status, why = s.checkDatagram(now, w, b)
	}
	mistaken := w.Status != abi.WCSuccess
	if s.owner.faults != nil && w.Status == abi.WCSuccess {
		w.Status = s.owner.faults.Work(s.number, w.WQE.Opcode)
	}
	if s.owner.strict && w.reserved(b) {
		s.queue.Broke(abi.DRV102, b)
	}
	if clause := s.brokenBy(w); clause != 0 {
		s.queue.Broke(clause, b)
	} else if mistaken {
		s.queue.mistaken(w.Index, w.Status, why)
	}
	if s.owner.Trace != nil {
		s.noteRead(w)
	}
	return w, true
}

// checkWR completes w from the rest of its entry and returns what is wrong with it. The entry in
// shared memory is not read again.
func (s *sender) checkWR(w *SendWR, rest []byte) (abi.WCStatus, Reason) {
	x := &w.WQE
	var need uint32
	op := uint64(x.Opcode)
	if s.typ == abi.QPTypeUC && !carries(x.Opcode) {
		return abi.WCLocQPOpErr, because("opcode %d cannot be used on an unreliable connection", op)
	}
	switch x.Opcode {
	case abi.OpSend, abi.OpSendImm, abi.OpSendInv, abi.OpWrite, abi.OpWriteImm:
	case abi.OpRead, abi.OpCmpSwap, abi.OpFetchAdd, abi.OpMaskedCmpSwap, abi.OpMaskedFetchAdd:
		if s.attr.maxRdAtomic == 0 {
			return abi.WCLocQPOpErr, because("opcode %d is a READ or an atomic, and the QP's max_rd_atomic is 0", op)
		}
		need = abi.AccessLocalWrite
	case abi.OpReadInv:
		if s.attr.maxRdAtomic == 0 {
			return abi.WCLocQPOpErr, because("opcode %d is a READ or an atomic, and the QP's max_rd_atomic is 0", op)
		}
		if !s.regions.inDomain(s.pd, x.Imm) {
			return abi.WCLocQPOpErr, because("the key to invalidate, %#x, names no region of the QP's protection domain", uint64(x.Imm))
		}
		need = abi.AccessLocalWrite
	case abi.OpAtomicWrite:
		return w.readWord()
	case abi.OpRegMR:
		if !s.queue.privileged {
			return abi.WCLocQPOpErr, because("opcode %d registers memory, and the QP is not privileged", op)
		}
		return w.readParameters(rest)
	case abi.OpLocalInv, abi.OpBindMW:
		return w.readParameters(rest)
	default:
		return abi.WCLocQPOpErr, because("opcode %d is unknown", op)
	}
	if x.Flags&abi.SendInline != 0 {
		switch {
		case need != 0:
			return abi.WCLocQPOpErr, because("opcode %d cannot be inline: its data comes in", op)
		case x.NumSGE != 0:
			return abi.WCLocQPOpErr, because("it is inline and has %d SGEs", uint64(x.NumSGE))
		case x.InlineLen > uint32(s.works.maxInline):
			return abi.WCLocLenErr, because("it has %d bytes inline, and the QP was created for %d", uint64(x.InlineLen), uint64(s.works.maxInline))
		}
		w.Inline = append(w.Inline, rest[:x.InlineLen]...)
		w.Length = x.InlineLen
		return abi.WCSuccess, Reason{}
	}
	if int(x.NumSGE) > s.works.maxSGE {
		return abi.WCLocQPOpErr, because("it has %d SGEs, and the QP was created for %d", uint64(x.NumSGE), uint64(s.works.maxSGE))
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
	if w.SGEs, total, ok = s.regions.SGEs(s.pd, s.queue.privileged, w.SGEs, rest, int(x.NumSGE), need); !ok {
		return abi.WCLocProtErr, s.regions.wrongSGE(s.pd, s.queue.privileged, rest, int(x.NumSGE), need)
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
func (s *sender) brokenBy(w *SendWR) abi.Clause {
	x := &w.WQE
	masked := x.Opcode == abi.OpMaskedCmpSwap || x.Opcode == abi.OpMaskedFetchAdd
	switch {
	case (masked || x.Opcode == abi.OpAtomicWrite) && !s.owner.Extended():
		return abi.DRV103
	case s.typ == abi.QPTypeUC && !carries(x.Opcode):
		return abi.DRV960
	case x.Flags&abi.SendInline != 0 && x.InlineLen > uint32(s.works.maxInline), x.Flags&abi.SendInline == 0 && int(x.NumSGE) > s.works.maxSGE,
		parameters(x.Opcode) > max(int(s.queue.read)-abi.SendWQEHeader, 0):
		return abi.DRV608
	case masked && x.NumSGE != 1:
		return abi.DRV611
	}
	return 0
}

// runLocal carries out a request that concerns this side only.
func (s *sender) runLocal(w *SendWR) {
	switch x := &w.WQE; x.Opcode {
	case abi.OpLocalInv:
		w.Status = s.regions.invalidate(s.pd, s.windows, x.Imm)
	case abi.OpRegMR:
		w.Status = s.regions.fastRegister(s.pd, x.RKey, &w.reg)
	default:
		w.Status = s.regions.bind(s.pd, s.windows, x.RKey, &w.bind)
	}
	if w.Status != abi.WCSuccess {
		s.queue.mistaken(w.Index, w.Status, w.whyNotLocal())
	}
	w.started, w.Issued = true, true
}

// whyNotLocal returns why a request that concerns this side only was refused.
func (w *SendWR) whyNotLocal() Reason {
	x := &w.WQE
	switch x.Opcode {
	case abi.OpLocalInv:
		return because("the key to invalidate, %#x, is not that of a valid region or bound window of the QP's protection domain, or windows are bound to it", uint64(x.Imm))
	case abi.OpRegMR:
		return because("key %#x is not that of a free region of the QP's protection domain for %d bytes, or the page list, address or rights are impossible", uint64(x.RKey), w.reg.Length)
	}
	return because("window %#x is not in the QP's protection domain, or is bound already; or lkey %#x gives no memory to bind: %d bytes at %#x", uint64(x.RKey), uint64(w.bind.LKey), w.bind.Length, w.bind.Addr)
}

// complete completes finished works in order, up to the first that is not finished; in unordered
// mode it completes all finished works. It stops at the first whose failure the QP does not
// survive, and returns its status.
func (s *sender) complete(now vtime.Time) (fatal abi.WCStatus) {
	r := &s.works
	for i := r.head; i != r.tail; i++ {
		w := r.at(i)
		if w.done {
			continue
		}
		over := w.Issued && w.Pending == 0
		if over && w.WQE.Opcode == abi.OpReadInv && w.Status == abi.WCSuccess {
			if w.Status = s.regions.invalidate(s.pd, s.windows, w.WQE.Imm); w.Status != abi.WCSuccess {
				s.queue.mistaken(w.Index, w.Status, because("the key to invalidate, %#x, was valid when the READ began, and is not now", uint64(w.WQE.Imm)))
			}
		}
		switch {
		case w.Status != abi.WCSuccess && (w.Issued || w.started) && !s.survives(w):
			st := w.Status
			s.report(now, w, st)
			w.done = true
			r.retireDone()
			return st
		case over:
			if w.Pulls() && w.started {
				r.reads--
			}
			s.report(now, w, w.Status)
			w.done = true
			if !s.unordered {
				r.retireDone()
			}
		case !s.unordered:
			return abi.WCSuccess
		}
	}
	r.retireDone()
	return abi.WCSuccess
}

// survives reports whether the QP continues after the failure of w. It does not if its requests do
// not complete in error, nor if the transport gave up or lost its position.
func (s *sender) survives(w *SendWR) bool {
	switch w.Status {
	case abi.WCRetryExcErr, abi.WCRNRRetryExcErr, abi.WCRespTimeoutErr, abi.WCBadRespErr, abi.WCGeneralErr:
		return false
	}
	return s.inError
}

// report writes the completion of w, unless it succeeded unsignaled.
func (s *sender) report(now vtime.Time, w *SendWR, st abi.WCStatus) {
	if st == abi.WCSuccess && !s.signalAll && w.WQE.Flags&abi.SendSignaled == 0 {
		if s.owner.Trace != nil {
			s.noteSilent(w)
		}
		return
	}
	if s.owner.Trace != nil {
		s.noteCompleting(w)
	}
	cqe := abi.CQE{
		WRID: w.WQE.WRID, QPN: s.number, SrcQP: s.peer.number, Status: st, Opcode: WCOpcode(w.WQE.Opcode), VendorErr: w.Vendor,
	}
	if st == abi.WCSuccess && w.Pulls() {
		cqe.ByteLen = w.Length
	}
	if st == abi.WCSuccess && w.WQE.Opcode == abi.OpReadInv {
		cqe.Flags, cqe.Imm = abi.WCFlagInv, w.WQE.Imm
	}
	s.cq.post(now, &cqe, false)
}

// finish removes the work at head from the ring. It writes a completion, unless the work has one
// already or succeeded unsignaled.
func (s *sender) finish(now vtime.Time, st abi.WCStatus) {
	w := s.works.retire()
	if !w.done {
		s.report(now, w, st)
	}
	s.works.release(w)
}

// flushTurn limits the work requests of each queue that a failed QP flushes in one turn.
const flushTurn = 64

// flush completes requests with WCWRFlushErr in the order of posting: first those already read,
// then those still in guest memory. It reports whether there are more.
func (s *sender) flush(now vtime.Time) (more bool) {
	r := &s.works
	for range flushTurn {
		if r.head != r.tail {
			r.at(r.head).Vendor = 0
			s.finish(now, abi.WCWRFlushErr)
			continue
		}
		b, ok := s.queue.Next(s.shared.entry[:])
		if !ok {
			return s.queue.Sleep()
		}
		var x abi.SendWQE
		x.Unmarshal(b)
		s.owner.Stats.Posted++
		s.cq.post(now, &abi.CQE{
			WRID: x.WRID, QPN: s.number, Status: abi.WCWRFlushErr, Opcode: WCOpcode(x.Opcode),
		}, false)
	}
	s.queue.Commit()
	return true
}

// noteEntries records that entries of the send queue up to index are available.
func (s *sender) noteEntries(kind trace.Kind, index uint32) {
	if s.owner.traces(s.number) {
		s.owner.Trace.Add(&trace.Event{Kind: kind, Work: s.number, Index: index})
	}
}

// noteRead records that w was read.
func (s *sender) noteRead(w *SendWR) {
	if s.owner.traces(s.number) {
		s.owner.Trace.Add(&trace.Event{Kind: trace.Read, Work: s.number, Index: w.Index, Op: uint8(w.WQE.Opcode), Arg: w.WQE.WRID, Extra: w.Length})
	}
}

// noteCompleting announces that the next CQE is that of w.
func (s *sender) noteCompleting(w *SendWR) {
	if s.owner.traces(s.number) {
		s.owner.Trace.Completing(&trace.Event{Kind: trace.Completed, Work: s.number, Index: w.Index})
	}
}

// noteSilent records that w is complete and gets no CQE.
func (s *sender) noteSilent(w *SendWR) {
	if s.owner.traces(s.number) {
		s.owner.Trace.Add(&trace.Event{Kind: trace.Completed, Work: s.number, Index: w.Index, Flags: trace.Silent})
	}
}

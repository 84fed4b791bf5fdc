package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Heard implements transport.Responder. It tells a driver that waits in RTR that it may move on.
func (r *responder) Heard() {
	q := r.q
	if r.heard {
		return
	}
	r.heard = true
	if q.state == abi.QPStateRTR {
		q.owner.Event(abi.EventCommEst, q.number, 0, "")
	}
}

// Serving implements transport.Responder.
func (r *responder) Serving() bool {
	switch r.q.state {
	case abi.QPStateRTR, abi.QPStateRTS, abi.QPStateSQD, abi.QPStateSQE:
		return true
	}
	return false
}

// Address implements transport.Responder: with XRC, it selects an SRQ of the QP's domain.
func (r *responder) Address(srqn uint32) bool {
	q := r.q
	if q.typ != abi.QPTypeXRCRecv {
		return false
	}
	s := q.in.srqs.SRQ(srqn)
	r.rsp.srq = s
	return s != nil && s.In(q.xrcd)
}

// Place implements transport.Responder.
func (r *responder) Place(now vtime.Time, p *transport.Packet, data []byte) transport.Verdict {
	q := r.q
	refusal, v, st := r.place(p, data)
	switch {
	case refusal == transport.Accepted, refusal == transport.NotReady:
		return transport.Verdict{Refusal: refusal, Failed: st}
	case q.unreliable() && (v == nil || st != abi.WCLocProtErr && st != abi.WCLocQPOpErr):
		return transport.Verdict{Refusal: refusal} // the message is lost, and the next has its receive
	case q.cie && (v != nil || !p.TakesReceive()):
		// The message fails at both ends, and nothing else does.
		if st == abi.WCSuccess {
			st = abi.WCLocAccessErr
		}
		return transport.Verdict{Refusal: refusal, Alone: true, Failed: st}
	}
	if v != nil && st != abi.WCSuccess {
		r.finishRecv(now, v, st)
	}
	r.Refused(now, refusal)
	return transport.Verdict{Refusal: refusal}
}

// place checks the rights that a packet needs and writes its data to memory. If it refuses the
// packet, it also returns the receive that the packet would take and the status of that receive, if
// there are any. If it accepts the packet, the status says why the message as a whole fails.
func (r *responder) place(p *transport.Packet, data []byte) (transport.Refusal, *Receive, abi.WCStatus) {
	q := r.q
	var v *Receive
	if p.TakesReceive() {
		s := r.source()
		switch {
		case int32(p.Message-r.rsp.message) < 0:
			return transport.Invalid, nil, abi.WCSuccess
		case s != nil && s.Failed():
			return transport.Operation, nil, abi.WCSuccess
		}
		if v = r.receiveFor(p.Message); v == nil {
			return transport.NotReady, nil, abi.WCSuccess
		}
		switch {
		case v.SRQ != s || v.Done:
			return transport.Invalid, nil, abi.WCSuccess // the message named another SRQ before, or is complete
		case v.Status != abi.WCSuccess: // although a WRITE with immediate data writes nothing there
			return transport.Operation, v, v.Status
		}
	}
	switch {
	case !p.Spoiled:
	case q.cie:
		return transport.Accepted, v, abi.WCRemAbortErr // the peer gave the message up
	default: // its contents are not data
		return transport.Operation, v, abi.WCRemAbortErr
	}
	if p.Sends() {
		switch {
		case uint64(p.Offset)+uint64(len(data)) > v.Capacity:
			r.tooShort(v, uint32(p.Message), uint64(p.Offset)+uint64(len(data)))
			return transport.Invalid, v, abi.WCLocLenErr
		case p.Op == abi.OpSendInv && q.regions.invalidatable(r.domain(), &q.windows, p.Imm) == nil:
			return transport.Access, v, abi.WCSuccess
		}
		var c Cursor
		c.Advance(v.SGEs, p.Offset)
		if v.SGEs.Scatter(c, data) != nil {
			return transport.Operation, v, abi.WCLocProtErr
		}
		return transport.Accepted, nil, abi.WCSuccess
	}
	if p.Claimed != uint32(len(data)) {
		return transport.Invalid, v, abi.WCSuccess
	}
	if len(data) == 0 {
		return transport.Accepted, nil, abi.WCSuccess // InfiniBand: the key of an empty WRITE is not checked
	}
	m := r.remote(p.RKey, p.Addr, uint64(len(data))+uint64(p.Ahead), abi.AccessRemoteWrite) // if the WRITE is too long, nothing of it is written
	if m == nil {
		return transport.Access, v, abi.WCSuccess
	}
	if m.Write(p.Addr, data) != nil {
		return transport.Operation, v, abi.WCSuccess
	}
	return transport.Accepted, nil, abi.WCSuccess
}

// Read implements transport.Responder.
func (r *responder) Read(rkey uint32, addr uint64, n uint32) (transport.Memory, transport.Refusal) {
	q := r.q
	switch {
	case q.attr.maxDest == 0:
		return nil, transport.Invalid
	case n == 0:
		return nil, transport.Accepted // InfiniBand: the key of an empty READ is not checked
	}
	m := r.remote(rkey, addr, uint64(n), abi.AccessRemoteRead)
	if m == nil {
		return nil, transport.Access
	}
	return m, transport.Accepted
}

// Atomic implements transport.Responder.
func (r *responder) Atomic(x *transport.Atomic) (original uint64, why transport.Refusal) {
	q := r.q
	if q.attr.maxDest == 0 || x.Addr&7 != 0 {
		return 0, transport.Invalid
	}
	m := r.remote(x.RKey, x.Addr, 8, abi.AccessRemoteAtomic)
	if m == nil {
		return 0, transport.Access
	}
	if !m.aligned(x.Addr) {
		return 0, transport.Invalid
	}
	if original, err := m.Atomic(x.Addr, &Atomic{Op: x.Op, Compare: x.Compare, SwapAdd: x.SwapAdd, Masks: x.Masks}); err == nil {
		return original, transport.Accepted
	}
	return 0, transport.Operation
}

// remote returns the region or window with that key for the peer. Both the QP and the region must
// give the right, and a window must be bound to the QP.
func (r *responder) remote(rkey uint32, va, n uint64, right uint32) *MR {
	q := r.q
	if q.attr.access&right == 0 {
		return nil
	}
	if q.owner.Faults() != nil && q.owner.Faults().Key(q.number) {
		return nil
	}
	return q.regions.Remote(r.domain(), &q.windows, rkey, va, n, right)
}

// Receives implements transport.Responder. It counts the receives posted in the QP's own queue, and
// those read from it for messages that are not complete.
func (r *responder) Receives() (n int, counted bool) {
	if r.srq != nil || r.q.typ == abi.QPTypeXRCRecv {
		return 0, false
	}
	posted := uint32(0)
	if r.rq.Open() {
		posted, _ = r.rq.Poll()
	}
	return int(posted + r.rsp.fetched - r.rsp.message), true
}

// RNRTimer implements transport.Responder.
func (r *responder) RNRTimer() uint8 { return r.q.attr.minRNRTimer }

// AnswerAt implements transport.Responder.
func (r *responder) AnswerAt(now vtime.Time) vtime.Time { return r.q.sched.AnswerAt(now) }

// Answered implements transport.Responder.
func (r *responder) Answered(n int) { r.q.sched.Answered(n) }

// Refused implements transport.Responder: it moves the QP to ERR because a request of the peer was
// refused.
func (r *responder) Refused(now vtime.Time, why transport.Refusal) {
	q := r.q
	typ, st, reason := abi.EventQPFatal, abi.WCRemOpErr, "refused a request of the peer"
	switch why {
	case transport.Sequence:
		typ, st, reason = abi.EventQPReqErr, abi.WCRemInvReqErr, "a request of the peer was out of sequence"
	case transport.Invalid:
		q.violated = true
		typ, st, reason = abi.EventQPReqErr, abi.WCRemInvReqErr, "the peer sent an invalid request"
	case transport.Access:
		typ, st, reason = abi.EventQPAccessErr, abi.WCRemAccessErr, "the peer asked for memory it may not access"
	case transport.Operation:
		reason = "a request of the peer could not be carried out"
	}
	q.failAs(now, typ, st, reason)
}

// Complete implements transport.Responder. In unordered mode it then advances to the oldest message
// that is not complete.
func (r *responder) Complete(now vtime.Time, p *transport.Packet, n uint64, failed abi.WCStatus) {
	q := r.q
	m := &r.rsp
	v := m.receive(p.Message)
	v.Done = true
	for m.receive(m.message).Done {
		m.receive(m.message).Done = false
		m.message++
	}
	if q.owner.Trace != nil {
		r.noteReceiving(q.conn.ID(), p.ID)
	}
	if failed != abi.WCSuccess {
		r.finishRecv(now, v, failed)
		return
	}
	cqe := abi.CQE{ByteLen: uint32(n), SrcQP: q.peer.number, Opcode: abi.WCOpRecv}
	switch p.Op {
	case abi.OpWriteImm:
		cqe.Opcode = abi.WCOpRecvWriteImm
		cqe.Flags, cqe.Imm = abi.WCFlagImm, p.Imm
	case abi.OpSendImm:
		cqe.Flags, cqe.Imm = abi.WCFlagImm, p.Imm
	case abi.OpSendInv:
		pd := q.pd
		if pd == nil {
			pd = v.SRQ.PD() // XRC
		}
		if m := q.regions.invalidatable(pd, &q.windows, p.Imm); m != nil {
			m.invalidateRemote()
		}
		cqe.Flags, cqe.Imm = abi.WCFlagInv, p.Imm
	}
	r.completeRecv(now, v, &cqe, p.Solicited)
}

package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Receive is one receive work request, read once from the RQ or SRQ for the message that takes it.
type Receive struct {
	Taken    bool
	Done     bool // its message is complete but older ones are not (unordered mode)
	WRID     uint64
	SGEs     SGL // its capacity is the QP's MaxRecvSGE, or the maximum of any SRQ
	Capacity uint64
	Status   abi.WCStatus // result of its checks
	SRQ      *SRQ         // that it came from
}

// recvEntry returns how many bytes of a receive entry are read.
func recvEntry(sges uint8) uint32 { return abi.RecvWQEHeader + uint32(sges)*abi.SGESize }

// Fill sets v from the entry of u that was read last. Its SGEs must name memory of pd.
func (v *Receive) Fill(u *WorkQueue, r *Regions, pd *PD, entry []byte) {
	var x abi.RecvWQE
	x.Unmarshal(entry)
	if u.owner.strict && x.Reserved(entry) {
		u.Broke(abi.DRV102, entry)
	}
	*v = Receive{Taken: true, WRID: x.WRID, SGEs: v.SGEs[:0]}
	if int(x.NumSGE) > (len(entry)-abi.RecvWQEHeader)/abi.SGESize {
		u.Broke(abi.DRV608, entry)
		v.Status = abi.WCLocQPOpErr
		return
	}
	var ok bool
	if v.SGEs, v.Capacity, ok = r.SGEs(pd, u.privileged, v.SGEs, entry[abi.RecvWQEHeader:], int(x.NumSGE), abi.AccessLocalWrite); !ok {
		v.Status = abi.WCLocProtErr
		u.mistaken(u.Index()-1, v.Status, r.wrongSGE(pd, u.privileged, entry[abi.RecvWQEHeader:], int(x.NumSGE), abi.AccessLocalWrite))
	}
}

// Release frees v's slot.
func (v *Receive) Release() {
	if v.Taken && v.SRQ != nil {
		v.SRQ.taken--
	}
	v.Taken, v.SRQ = false, nil
}

// maxMessages limits the messages of the peer that hold a receive of a QP.
const maxMessages = 128

// messages tracks the messages of the peer that take a receive of a QP. They are numbered from 1 on
// each connection; receives is a ring indexed by that number.
//
//	message   oldest unfinished       newest that has a receive
//	──────────┬───────────────────────┬──────────────────────
//	   done   │ receives taken for it │ receives in the queue
type messages struct {
	message  uint32 // number of the oldest unfinished message
	fetched  uint32 // of the message the next receive in the RQ will serve
	receives []Receive
	maxSGE   int
	srq      *SRQ // SRQ that the current packet names (XRC)
}

// connect prepares for a new connection. receives is the depth of the queue that receives come
// from.
func (r *messages) connect(ordered bool, receives uint32) {
	r.drop()
	r.message, r.fetched = 1, 1
	n := uint32(1) // an ordered connection has one message in progress
	if !ordered {
		n = min(receives, maxMessages)
	}
	if uint32(len(r.receives)) != n {
		r.receives = make([]Receive, n)
		sges := make(SGL, int(n)*r.maxSGE)
		for i := range r.receives {
			r.receives[i].SGEs, sges = sges[:0:r.maxSGE], sges[r.maxSGE:]
		}
	}
}

// drop discards the messages in progress.
func (r *messages) drop() {
	r.fetched = r.message
	for i := range r.receives {
		r.receives[i].Release()
	}
}

// oldest returns the oldest receive that an unfinished message has taken.
func (r *messages) oldest() (*Receive, bool) {
	for i := range uint32(len(r.receives)) {
		if v := r.receive(r.message + i); v.Taken {
			return v, true
		}
	}
	return nil, false
}

func (r *messages) receive(number uint32) *Receive {
	return &r.receives[number&uint32(len(r.receives)-1)]
}

// receiveFor returns the receive for the message with that number. Messages take the receives of a
// QP's own queue in the order of their numbers (RDMA over Falcon §8.3.2), those of a shared queue
// in the order of arrival. It returns nil if none is posted or no more can be held: the peer has to
// wait.
func (r *responder) receiveFor(number uint32) *Receive {
	q := r.q
	m := &r.rsp
	if number-m.message >= uint32(len(m.receives)) {
		return nil
	}
	if s := r.source(); s != nil {
		v := m.receive(number)
		if !v.Taken && !s.Take(v) {
			return nil
		}
		return v
	}
	for ; m.fetched-m.message <= number-m.message; m.fetched++ {
		b, ok := r.rq.Next(q.shared.entry[:])
		if !ok {
			return nil
		}
		m.receive(m.fetched).Fill(&r.rq, q.regions, q.pd, b)
		r.rq.Commit()
	}
	return m.receive(number)
}

// source returns the shared queue that the current packet receives from, nil if the QP has a queue
// of its own.
func (r *responder) source() *SRQ {
	q := r.q
	if q.typ == abi.QPTypeXRCRecv {
		return r.rsp.srq
	}
	return r.srq
}

// domain returns the protection domain that the requests of the peer are checked against: the QP's,
// or that of the XRC SRQ that the current packet names.
func (r *responder) domain() *PD {
	q := r.q
	if q.typ == abi.QPTypeXRCRecv {
		return r.rsp.srq.PD()
	}
	return q.pd
}

// completeRecv writes the completion of v and frees its slot.
func (r *responder) completeRecv(now vtime.Time, v *Receive, cqe *abi.CQE, solicited bool) {
	q := r.q
	cq := r.recvCQ
	cqe.WRID, cqe.QPN = v.WRID, q.number
	if s := v.SRQ; s != nil {
		cqe.SRQN = s.Number()
		if s.CQ() != nil {
			cq = s.CQ()
		}
	}
	v.Release()
	cq.post(now, cqe, solicited)
}

// finishRecv completes a receive in error.
func (r *responder) finishRecv(now vtime.Time, v *Receive, st abi.WCStatus) {
	q := r.q
	r.completeRecv(now, v, &abi.CQE{SrcQP: q.peer.number, Status: st, Opcode: abi.WCOpRecv}, false)
}

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

func (r *responder) flushRecvs(now vtime.Time) (more bool) {
	q := r.q
	for range flushTurn {
		if v, ok := r.rsp.oldest(); ok {
			r.finishRecv(now, v, abi.WCWRFlushErr)
			continue
		}
		b, ok := r.rq.Next(q.shared.entry[:])
		if !ok {
			r.lastReceive()
			return r.rq.Sleep()
		}
		var x abi.RecvWQE
		x.Unmarshal(b)
		r.recvCQ.post(now, &abi.CQE{
			WRID: x.WRID, QPN: q.number, Status: abi.WCWRFlushErr, Opcode: abi.WCOpRecv,
		}, false)
	}
	r.rq.Commit()
	return true
}

// lastReceive tells the driver, once, that the failed QP takes no more entries of a shared queue.
func (r *responder) lastReceive() {
	q := r.q
	if !r.rq.Open() && q.typ != abi.QPTypeXRCSend && !r.lastWQE {
		r.lastWQE = true
		q.owner.Event(abi.EventLastWQE, q.number, 0, "")
	}
}

// tooShort reports a receive that is too small for a message of at least n bytes. In a receive
// queue the message number is the index of the entry. For a shared receive queue only the ID of the
// request is known.
func (r *responder) tooShort(v *Receive, message uint32, n uint64) {
	if v.SRQ != nil {
		v.SRQ.queue.mistaken(0, abi.WCLocLenErr, because("the receive with ID %#x has room for %d bytes, and its message has %d or more", v.WRID, v.Capacity, n))
		return
	}
	r.rq.mistaken(message, abi.WCLocLenErr, because("it has room for %d bytes, and its message has %d or more", v.Capacity, n))
}

// noteReceiving announces that the next CQE is for the receive of a packet of connection conn.
func (r *responder) noteReceiving(conn, id uint32) {
	q := r.q
	if q.owner.traces(q.number) {
		q.owner.Trace.Completing(&trace.Event{Kind: trace.Completed, Conn: conn, Index: id, Flags: trace.Responder})
	}
}

// receives returns how many messages of the peer can hold a receive at a time, if an ordered
// connection does not limit that to one.
func (r *responder) receives() uint32 {
	q := r.q
	switch {
	case q.typ == abi.QPTypeXRCRecv:
		return maxMessages
	case r.srq != nil:
		return r.srq.Entries()
	}
	return r.rq.Entries()
}

// maxRecvSGE returns the maximum of SGEs in a receive of the QP.
func (r *responder) maxRecvSGE(c *abi.CreateQP) int {
	q := r.q
	switch {
	case r.srq != nil:
		return r.srq.MaxSGE()
	case q.typ == abi.QPTypeXRCRecv:
		return q.owner.Limits().SGEs
	}
	return int(c.MaxRecvSGE)
}

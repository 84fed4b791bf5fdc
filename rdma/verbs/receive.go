package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// receiver is the half of a queue pair that serves its peer: it takes receives for messages, checks
// and places what arrives, and carries out READs and atomics.
type receiver struct {
	half
	cq       *CQ
	queue    WorkQueue
	srq      *SRQ  // shared receive queue that the QP was created with
	xrcd     *XRCD // XRCRecv: packets name the SRQ, one of this domain
	srqs     *SRQs
	named    *SRQ // by the current packet
	messages messages
	lastSent bool // EventLastWQE was sent
}

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

// messages holds the receives that unfinished messages of the peer have taken. Messages that take a
// receive are numbered from 1 on each connection.
//
//	          first              next
//	────────────┬──────────────────┬───────────────────────
//	  complete  │ have a receive   │ have none yet
type messages struct {
	first  uint32    // number of the oldest unfinished message
	next   uint32    // of the message that the next receive in the QP's own queue is for
	ring   []Receive // by the number of the message
	maxSGE int
}

// connect prepares for a new connection. receives is how many messages can hold a receive at a time
// if their order does not limit that to one.
func (m *messages) connect(ordered bool, receives uint32) {
	if ordered && len(m.ring) == 1 && m.ring[0].Taken { // the next message takes it
		m.first, m.next = 1, 2
		return
	}
	m.drop()
	m.first, m.next = 1, 1
	n := uint32(1) // an ordered connection has one message in progress
	if !ordered {
		n = min(receives, maxMessages)
	}
	if uint32(len(m.ring)) != n {
		m.ring = make([]Receive, n)
		sges := make(SGL, int(n)*m.maxSGE)
		for i := range m.ring {
			m.ring[i].SGEs, sges = sges[:0:m.maxSGE], sges[m.maxSGE:]
		}
	}
}

// drop discards the messages in progress.
func (m *messages) drop() {
	m.next = m.first
	for i := range m.ring {
		m.ring[i].Release()
	}
}

// oldest returns the oldest receive that an unfinished message has taken.
func (m *messages) oldest() (*Receive, bool) {
	for i := range uint32(len(m.ring)) {
		if v := m.at(m.first + i); v.Taken {
			return v, true
		}
	}
	return nil, false
}

// at returns the place of the message with that number.
func (m *messages) at(number uint32) *Receive {
	return &m.ring[number&uint32(len(m.ring)-1)]
}

// most returns how many messages of the peer can hold a receive at a time, if an ordered connection
// does not limit that to one.
func (r *receiver) most() uint32 {
	switch {
	case r.typ == abi.QPTypeXRCRecv:
		return maxMessages
	case r.srq != nil:
		return r.srq.queue.Entries()
	}
	return r.queue.Entries()
}

// maxSGE returns the maximum of SGEs in a receive of the QP.
func (r *receiver) maxSGE(c *abi.CreateQP) int {
	switch {
	case r.srq != nil:
		return r.srq.maxSGE
	case r.typ == abi.QPTypeXRCRecv:
		return r.owner.Limits().SGEs
	}
	return int(c.MaxRecvSGE)
}

// receiveFor returns the receive for the message with that number. Messages take the receives of a
// QP's own queue in the order of their numbers (RDMA over Falcon §8.3.2), those of a shared queue
// in the order of arrival. It returns nil if none is posted or no more can be held: the peer has to
// wait.
func (r *receiver) receiveFor(number uint32) *Receive {
	m := &r.messages
	if number-m.first >= uint32(len(m.ring)) {
		return nil
	}
	if s := r.source(); s != nil {
		v := m.at(number)
		if !v.Taken && !s.Take(v) {
			return nil
		}
		return v
	}
	for ; m.next-m.first <= number-m.first; m.next++ {
		b, ok := r.queue.Next(r.shared.entry[:])
		if !ok {
			return nil
		}
		m.at(m.next).Fill(&r.queue, r.regions, r.pd, b)
		r.queue.Commit()
	}
	return m.at(number)
}

// source returns the shared queue that the current packet receives from, nil if the QP has a queue
// of its own.
func (r *receiver) source() *SRQ {
	if r.typ == abi.QPTypeXRCRecv {
		return r.named
	}
	return r.srq
}

// domain returns the protection domain that the requests of the peer are checked against: the QP's,
// or that of the XRC SRQ that the current packet names.
func (r *receiver) domain() *PD {
	if r.typ == abi.QPTypeXRCRecv {
		return r.named.pd
	}
	return r.pd
}

// report writes the completion of v and frees its place.
func (r *receiver) report(now vtime.Time, v *Receive, cqe *abi.CQE, solicited bool) {
	cq := r.cq
	cqe.WRID, cqe.QPN = v.WRID, r.number
	if s := v.SRQ; s != nil {
		cqe.SRQN = s.number
		if s.cq != nil {
			cq = s.cq
		}
	}
	v.Release()
	cq.post(now, cqe, solicited)
}

// finish completes a receive in error.
func (r *receiver) finish(now vtime.Time, v *Receive, st abi.WCStatus) {
	r.report(now, v, &abi.CQE{SrcQP: r.peer.number, Status: st, Opcode: abi.WCOpRecv}, false)
}

// address selects the SRQ, of the XRC domain, that the current packet names.
func (r *receiver) address(srqn uint32) bool {
	if r.typ != abi.QPTypeXRCRecv {
		return false
	}
	s := r.srqs.SRQ(srqn)
	r.named = s
	return s != nil && s.xrcd == r.xrcd
}

// place checks the rights that a packet needs and writes its data to memory. If it refuses the
// packet, it also returns the receive that the packet would take and the status of that receive, if
// there are any. If it accepts the packet, the status says why the message as a whole fails.
func (r *receiver) place(p *transport.Packet, data []byte) (transport.Refusal, *Receive, abi.WCStatus) {
	var v *Receive
	if p.TakesReceive() {
		s := r.source()
		switch {
		case int32(p.Message-r.messages.first) < 0:
			return transport.Invalid, nil, abi.WCSuccess
		case s != nil && s.failed:
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
	case r.inError:
		return transport.Accepted, v, abi.WCRemAbortErr // the peer gave the message up
	default: // its contents are not data
		return transport.Operation, v, abi.WCRemAbortErr
	}
	if p.Sends() {
		switch {
		case uint64(p.Offset)+uint64(len(data)) > v.Capacity:
			r.tooShort(v, uint32(p.Message), uint64(p.Offset)+uint64(len(data)))
			return transport.Invalid, v, abi.WCLocLenErr
		case p.Op == abi.OpSendInv && r.regions.invalidatable(r.domain(), r.windows, p.Imm) == nil:
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
	m, why := r.remote(p.RKey, p.Addr, uint64(len(data))+uint64(p.Ahead), abi.AccessRemoteWrite) // if the WRITE is too long, nothing of it is written
	if m == nil {
		return why, v, abi.WCSuccess
	}
	if m.Write(p.Addr, data) != nil {
		return transport.Operation, v, abi.WCSuccess
	}
	return transport.Accepted, nil, abi.WCSuccess
}

// read returns the memory for a READ of the peer.
func (r *receiver) read(rkey uint32, addr uint64, n uint32) (transport.Memory, transport.Refusal) {
	switch {
	case r.attr.maxDest == 0:
		return nil, transport.Invalid
	case n == 0:
		return nil, transport.Accepted // InfiniBand: the key of an empty READ is not checked
	}
	m, why := r.remote(rkey, addr, uint64(n), abi.AccessRemoteRead)
	if m == nil {
		return nil, why
	}
	return m, transport.Accepted
}

// atomic carries out an atomic of the peer.
func (r *receiver) atomic(x *transport.Atomic) (original uint64, why transport.Refusal) {
	if r.attr.maxDest == 0 || x.Addr&7 != 0 {
		return 0, transport.Invalid
	}
	m, why := r.remote(x.RKey, x.Addr, 8, abi.AccessRemoteAtomic)
	if m == nil {
		return 0, why
	}
	if !m.aligned(x.Addr) {
		return 0, transport.Invalid
	}
	if original, err := m.Atomic(x.Addr, &Atomic{Op: x.Op, Compare: x.Compare, SwapAdd: x.SwapAdd, Masks: x.Masks}); err == nil {
		return original, transport.Accepted
	}
	return 0, transport.Operation
}

// remote returns the region or window with that key for the peer, or why it may not be accessed.
// Both the QP and the region must give the right, and a window must be bound to the QP.
func (r *receiver) remote(rkey uint32, va, n uint64, right uint32) (*MR, transport.Refusal) {
	if r.attr.access&right == 0 {
		return nil, transport.Access
	}
	if r.owner.faults != nil && r.owner.faults.Key(r.number) {
		return nil, transport.UnknownKey
	}
	m := r.regions.Remote(r.domain(), r.windows, rkey, va, n, right)
	if m == nil {
		return nil, r.regions.wrongRemote(r.domain(), r.windows, rkey, right)
	}
	return m, transport.Accepted
}

// complete ends the message whose last packet is p. In unordered mode older messages may still be
// unfinished.
func (r *receiver) complete(now vtime.Time, p *transport.Packet, n uint64, failed abi.WCStatus) {
	m := &r.messages
	v := m.at(p.Message)
	v.Done = true
	for m.at(m.first).Done {
		m.at(m.first).Done = false
		m.first++
	}
	if failed != abi.WCSuccess {
		r.finish(now, v, failed)
		return
	}
	cqe := abi.CQE{ByteLen: uint32(n), SrcQP: r.peer.number, Opcode: abi.WCOpRecv}
	switch p.Op {
	case abi.OpWriteImm:
		cqe.Opcode = abi.WCOpRecvWriteImm
		cqe.Flags, cqe.Imm = abi.WCFlagImm, p.Imm
	case abi.OpSendImm:
		cqe.Flags, cqe.Imm = abi.WCFlagImm, p.Imm
	case abi.OpSendInv:
		pd := r.pd
		if pd == nil {
			pd = v.SRQ.pd // XRC
		}
		if m := r.regions.invalidatable(pd, r.windows, p.Imm); m != nil {
			m.invalidateRemote()
		}
		cqe.Flags, cqe.Imm = abi.WCFlagInv, p.Imm
	}
	r.report(now, v, &cqe, p.Solicited)
}

// flush completes receives with WCWRFlushErr in the order of posting: first those that messages
// have taken, then those still in guest memory. It reports whether there are more.
func (r *receiver) flush(now vtime.Time) (more bool) {
	for range flushTurn {
		if v, ok := r.messages.oldest(); ok {
			r.finish(now, v, abi.WCWRFlushErr)
			continue
		}
		b, ok := r.queue.Next(r.shared.entry[:])
		if !ok {
			r.lastReceive()
			return r.queue.Sleep()
		}
		var x abi.RecvWQE
		x.Unmarshal(b)
		r.cq.post(now, &abi.CQE{
			WRID: x.WRID, QPN: r.number, Status: abi.WCWRFlushErr, Opcode: abi.WCOpRecv,
		}, false)
	}
	r.queue.Commit()
	return true
}

// available counts the receives posted in the QP's own queue, and those read from it for messages
// that are not complete. counted is false if the QP has no queue of its own.
func (r *receiver) available() (n int, counted bool) {
	if r.srq != nil || r.typ == abi.QPTypeXRCRecv {
		return 0, false
	}
	posted := uint32(0)
	if r.queue.Open() {
		posted, _ = r.queue.Poll()
	}
	return int(posted + r.messages.next - r.messages.first), true
}

// lastReceive tells the driver, once, that the failed QP takes no more entries of a shared queue.
func (r *receiver) lastReceive() {
	if !r.queue.Open() && r.typ != abi.QPTypeXRCSend && !r.lastSent {
		r.lastSent = true
		r.owner.Event(abi.EventLastWQE, r.number, 0, "")
	}
}

// tooShort reports a receive that is too small for a message of at least n bytes. In a receive
// queue the message number is the index of the entry. For a shared receive queue only the ID of the
// request is known.
func (r *receiver) tooShort(v *Receive, message uint32, n uint64) {
	if v.SRQ != nil {
		v.SRQ.queue.mistaken(0, abi.WCLocLenErr, because("the receive with ID %#x has room for %d bytes, and its message has %d or more", v.WRID, v.Capacity, n))
		return
	}
	r.queue.mistaken(message, abi.WCLocLenErr, because("it has room for %d bytes, and its message has %d or more", v.Capacity, n))
}

// noteDatagram records that a datagram of the peer is in memory, and announces the CQE for its
// receive. Nobody acknowledges a datagram that came without a connection.
func (r *receiver) noteDatagram(d *Arrival) {
	e := trace.Event{
		Kind: trace.Delivered, Conn: d.Conn, Index: d.ID, Op: d.Opcode, Arg: uint64(d.To), Extra: uint32(d.Length), Wire: d.Wire, Flags: d.TraceFlags | trace.Wanted,
	}
	r.owner.Trace.Add(&e)
	if d.Conn == 0 {
		e.Kind, e.Flags = trace.Gone, trace.Responder
		r.owner.Trace.Add(&e)
	}
	r.noteReceiving(d.Conn, d.ID)
}

// noteReceiving announces that the next CQE is for the receive of a packet of connection conn.
func (r *receiver) noteReceiving(conn, id uint32) {
	if r.owner.traces(r.number) {
		r.owner.Trace.Completing(&trace.Event{Kind: trace.Completed, Conn: conn, Index: id, Flags: trace.Responder})
	}
}

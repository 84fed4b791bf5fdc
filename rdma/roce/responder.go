package roce

import (
	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// maxAtomics is how many results of atomics are kept for a peer that did not get them; at least as
// many as it may have under way.
const maxAtomics = 128

// responder is the half of a connection that serves the requests of the peer.
type responder struct {
	end *end

	expected wire.PSN // of the next packet
	msn      uint32   // messages complete, 24 bits
	message  uint32   // number of the next that takes a receive, from 1
	missed   bool     // the peer was told what is missing, or to come again: until that comes
	part     message
	refused  ib.Syndrome // of a request that the connection did not survive; 0: none

	answers ring.Queue[answer] // to READs and atomics, in the order of their PSNs
	spoiled bool               // the memory of the first of them is gone
	atomics []result           // ring, made when there is one
	ran     int                // atomics
	again   timer.Handle       // the front of answers may be sent then
	reply   reply
	marks   marks
}

// reply is an acknowledgement that is due.
type reply struct {
	due  bool
	psn  wire.PSN
	aeth ib.AETH
}

// acknowledge makes an acknowledgement due. One that refuses is not replaced by one that is about
// what came before.
func (s *responder) acknowledge(psn wire.PSN, syndrome ib.Syndrome) {
	if s.reply.due && !s.reply.aeth.Syndrome.Acks() && syndrome.Acks() && psn.Sub(s.reply.psn) < 0 {
		return
	}
	s.reply = reply{due: true, psn: psn, aeth: ib.AETH{Syndrome: syndrome, MSN: s.msn}}
}

// answer makes an acknowledgement due.
func (s *responder) answer(psn wire.PSN, syndrome ib.Syndrome) {
	s.acknowledge(psn, syndrome)
	s.end.wake()
}

// acks returns the syndrome of an acknowledgement with the current number of credits.
func (s *responder) acks() ib.Syndrome {
	if s.end.user == nil {
		return ib.SynAck
	}
	if n, counted := s.end.user.Receives(); counted {
		return ib.SynCredits(n)
	}
	return ib.SynAck
}

// operation returns the operation of a request. ok is false if the packet names a shared receive
// queue that it may not use.
func (s *responder) operation(h *wire.Headers) (op ib.Opcode, ok bool) {
	return wire.Operation(h.BTH.Opcode), !s.end.terms.XRC || s.end.user.Address(h.XRC.SRQ)
}

// took moves on by n PSNs.
func (s *responder) took(n int, last bool) {
	s.expected, s.missed = s.expected.Add(n), false
	if last {
		s.msn = (s.msn + 1) & wire.PSNMask
	}
}

// packet describes a packet with n data bytes for the queue pair.
func (s *responder) packet(info *ib.Info, h *wire.Headers, n int) *transport.Packet {
	p := &s.end.e.packet
	*p = transport.Packet{
		Op: info.Verb, First: info.First, Last: info.Last, Solicited: h.BTH.Solicited, ID: uint32(h.BTH.PSN), Message: s.message,
		Length: uint32(n), Claimed: uint32(n), Imm: h.Imm.Data,
	}
	if p.Op == abi.OpSendInv {
		p.Imm = h.Inv.RKey
	}
	return p
}

// refuse answers with a NAK, which neither side survives. tell says that the queue pair has to be
// told.
func (s *responder) refuse(now transport.Time, r transport.Refusal, tell bool) {
	s.end.account.Refused++
	s.end.port.stats.Refused++
	if r != transport.NotServing {
		s.refused = syndromeOf(r)
		s.answer(s.expected, s.refused)
	}
	if tell {
		s.end.user.Refused(now, r)
	}
}

// syndromeOf returns the syndrome that a refusal is sent as.
func syndromeOf(r transport.Refusal) ib.Syndrome {
	switch {
	case r.OfMemory():
		return ib.SynAccess
	case r == transport.Operation:
		return ib.SynOperation
	}
	return ib.SynInvalid
}

// maxMessage is the longest message in bytes (IBA: 2^31).
const maxMessage = 1 << 31

// message is the part of a message of several packets that has arrived.
type message struct {
	kind  partKind
	bytes uint64
	left  uint32 // WRITE: bytes still to come
	addr  uint64 // WRITE: address for the next data
	rkey  uint32
}

type partKind uint8

const (
	noMessage partKind = iota
	sending
	writing
)

// with returns the message with another packet added. ok is false if the packet does not fit the
// message (IBA §9.7.4.1.5, §9.7.4.1.6).
func (m message) with(info *ib.Info, h *wire.Headers, n, segment int) (message, bool) {
	kind := writing
	if info.Verb != abi.OpWrite && info.Verb != abi.OpWriteImm {
		kind = sending
	}
	switch {
	case info.First != (m.kind == noMessage), !info.First && m.kind != kind,
		!info.Last && n != segment, info.Last && (n > segment || n == 0 && !info.First):
		return m, false
	}
	if info.First {
		m = message{kind: kind, left: h.RETH.Length, addr: h.RETH.VA, rkey: h.RETH.RKey}
	}
	m.bytes += uint64(n)
	if kind == sending {
		return m, m.bytes <= maxMessage
	}
	if m.left > maxMessage || uint32(n) > m.left || info.Last != (uint32(n) == m.left) {
		return m, false
	}
	m.left -= uint32(n)
	m.addr += uint64(n)
	return m, true
}

// request handles a request of the peer according to its PSN (IBA §9.7.4.1.2).
func (s *responder) request(now transport.Time, h *wire.Headers, data []byte) {
	d := h.BTH.PSN.Sub(s.expected)
	if s.end.notes.On() {
		s.noteArrived(h.BTH.PSN)
	}
	if s.end.user == nil || !s.end.user.Serving() {
		s.unserved(h, d)
		return
	}
	s.end.user.Heard()
	switch {
	case d < 0:
		s.duplicate(now, h)
	case d == 0:
		s.take(now, h, data)
	case !s.missed:
		s.missed = true
		s.answer(s.expected, ib.SynSequence)
	}
}

// unserved handles a request that the queue pair no longer accepts. A request that was accepted is
// acknowledged again, one that was refused is refused again, and any other is ignored.
func (s *responder) unserved(h *wire.Headers, d int) {
	switch {
	case d >= 0:
		if s.refused != 0 {
			s.answer(s.expected, s.refused)
		}
	case h.BTH.Opcode.Info().Kind == ib.KindData:
		s.answer(s.expected.Add(-1), s.acks())
	default:
		s.repeatAtomic(h.BTH.PSN)
	}
}

// take accepts the next request.
func (s *responder) take(now transport.Time, h *wire.Headers, data []byte) {
	op, ok := s.operation(h)
	switch {
	case !ok:
		s.refuse(now, transport.Invalid, true)
	case op.Info().Kind == ib.KindData:
		s.takeData(now, op.Info(), h, data)
	case s.part.kind != noMessage:
		s.refuse(now, transport.Invalid, true)
	case op == ib.ReadRequest:
		s.takeRead(now, h)
	default:
		s.takeAtomic(now, op, h)
	}
}

// takeData accepts a packet of a SEND or WRITE.
func (s *responder) takeData(now transport.Time, info *ib.Info, h *wire.Headers, data []byte) {
	part, ok := s.part.with(info, h, len(data), s.end.segment)
	if !ok {
		s.refuse(now, transport.Invalid, true)
		return
	}
	p := s.packet(info, h, len(data))
	if p.Sends() {
		p.Offset = uint32(s.part.bytes)
	} else {
		p.Addr, p.RKey, p.Ahead = part.addr-uint64(len(data)), part.rkey, part.left
	}
	switch v := s.end.user.Place(now, p, data); v.Refusal {
	case transport.Accepted:
	case transport.NotReady:
		s.end.account.RNRTx++
		s.missed = true
		s.answer(s.expected, ib.SynRNR|ib.Syndrome(s.end.user.RNRTimer()))
		return
	default:
		s.refuse(now, v.Refusal, false)
		return
	}
	s.end.account.PushesRx++
	s.end.account.BytesRx += uint64(len(data))
	if s.end.notes.On() {
		s.noteDelivered(h, p)
	}
	bytes := part.bytes
	if s.part = part; info.Last {
		s.part = message{}
	}
	s.took(1, info.Last)
	if info.Last && p.TakesReceive() {
		s.message++
		s.end.user.Complete(now, p, bytes, abi.WCSuccess)
	}
	if h.BTH.AckReq {
		s.answer(h.BTH.PSN, s.acks())
	}
}

// duplicate handles a request that arrived before (IBA §9.7.5.1.1). Data is acknowledged again,
// with current credits. A READ, or the requested part of it, is carried out again. For an atomic
// the kept result is sent again.
func (s *responder) duplicate(now transport.Time, h *wire.Headers) {
	op, ok := s.operation(h)
	switch {
	case !ok:
	case op.Info().Kind == ib.KindData:
		s.answer(s.expected.Add(-1), s.acks())
	case op == ib.ReadRequest:
		s.readAgain(now, h)
	default:
		s.repeatAtomic(h.BTH.PSN)
	}
}

// The unreliable connection (IBA §9.8.2): packets have PSNs and are not answered. A request is done
// when it was sent. The responder sees from the PSNs that packets are missing. Then the current
// message is lost, and the next First or Only packet is accepted whatever its PSN is.

// stale is how far behind the next PSN a packet counts as repeated or delayed by the network: its
// data arrived before, or is lost. A packet further behind means that the peer began anew.
const stale = 256

// takeUnreliable handles a packet of the peer. An error in it costs only the message that it
// belongs to (IBA §9.9.3, classes D and E).
func (s *responder) takeUnreliable(now transport.Time, h *wire.Headers, data []byte) {
	if s.end.user == nil || !s.end.user.Serving() {
		return
	}
	s.end.user.Heard()
	d := h.BTH.PSN.Sub(s.expected)
	if d < 0 && d > -stale {
		return
	}
	op, _ := s.operation(h)
	info := op.Info()
	if d != 0 || info.First {
		s.part = message{} // the current message is lost
	}
	s.expected = h.BTH.PSN.Add(1)
	part, ok := s.part.with(info, h, len(data), s.end.segment)
	if !ok {
		s.part = message{}
		return
	}
	p := s.packet(info, h, len(data))
	if p.Sends() {
		p.Offset = uint32(s.part.bytes)
	} else {
		p.Addr, p.RKey = part.addr-uint64(len(data)), part.rkey
	}
	if v := s.end.user.Place(now, p, data); v.Refusal != transport.Accepted || !s.end.user.Serving() {
		s.part = message{}
		return
	}
	if s.end.notes.On() { // nobody answers it
		s.noteArrived(h.BTH.PSN)
		s.noteDelivered(h, p)
		s.end.notes.Response(trace.Gone, uint32(h.BTH.PSN), serial(h.BTH.PSN))
	}
	s.end.account.PushesRx++
	s.end.account.BytesRx += uint64(len(data))
	if s.part = part; !info.Last {
		return
	}
	s.part = message{}
	if p.TakesReceive() {
		s.message++
		s.end.user.Complete(now, p, part.bytes, abi.WCSuccess)
	}
}

// noteArrived records a request of the peer.
func (s *responder) noteArrived(psn wire.PSN) {
	t := s.end.account.Trace
	t.Arrived(t.Now(), &trace.Event{Conn: s.end.terms.QPN, Index: uint32(psn), Extra: serial(psn)})
}

// noteDelivered records that the data of a packet is in memory.
func (s *responder) noteDelivered(h *wire.Headers, p *transport.Packet) {
	flags := uint8(0)
	if p.Last && p.TakesReceive() {
		flags = trace.Wanted
	}
	s.end.notes.Delivered(p.ID, uint8(h.BTH.Opcode), p.Length, flags)
}

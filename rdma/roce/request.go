package roce

import (
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// request handles a request of the peer according to its PSN (IBA §9.7.4.1.2).
func (s *responder) request(now transport.Time, h *wire.Headers, data []byte) {
	d := h.BTH.PSN.Sub(s.expected)
	if s.account.Trace != nil {
		s.noteArrived(h.BTH.PSN)
	}
	if s.user == nil || !s.user.Serving() {
		s.unserved(h, d)
		return
	}
	s.user.Heard()
	switch {
	case d < 0:
		s.duplicate(now, h)
	case d == 0:
		s.take(now, h, data)
	case !s.missed:
		s.missed = true
		s.answer(s.expected, wire.SynSequence)
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
	case h.BTH.Opcode.Info().Data:
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
	case op.Info().Data:
		s.takeData(now, op, h, data)
	case s.part.kind != noMessage:
		s.refuse(now, transport.Invalid, true)
	case op == wire.ReadRequest:
		s.takeRead(now, h)
	default:
		s.takeAtomic(now, op, h)
	}
}

// takeData accepts a packet of a SEND or WRITE.
func (s *responder) takeData(now transport.Time, op wire.Opcode, h *wire.Headers, data []byte) {
	info := op.Info()
	part, ok := s.part.with(op, info, h, len(data), s.segment)
	if !ok {
		s.refuse(now, transport.Invalid, true)
		return
	}
	p := s.packet(op, info, h, len(data))
	if p.Sends() {
		p.Offset = uint32(s.part.bytes)
	} else {
		p.Addr, p.RKey, p.Ahead = part.addr-uint64(len(data)), part.rkey, part.left
	}
	switch v := s.user.Place(now, p, data); v.Refusal {
	case transport.Accepted:
	case transport.NotReady:
		s.account.RNRTx++
		s.missed = true
		s.answer(s.expected, wire.SynRNR|wire.Syndrome(s.user.RNRTimer()))
		return
	default:
		s.refuse(now, v.Refusal, false)
		return
	}
	s.account.PushesRx++
	s.account.BytesRx += uint64(len(data))
	if s.account.Trace != nil {
		flags := uint8(0)
		if info.Last && p.TakesReceive() {
			flags = trace.Wanted
		}
		s.noteDelivered(h.BTH.Opcode, s.expected, len(data), flags)
	}
	bytes := part.bytes
	if s.part = part; info.Last {
		s.part = message{}
	}
	s.took(1, info.Last)
	if info.Last && p.TakesReceive() {
		s.message++
		s.user.Complete(now, p, bytes, abi.WCSuccess)
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
	case op.Info().Data:
		s.answer(s.expected.Add(-1), s.acks())
	case op == wire.ReadRequest:
		s.readAgain(now, h)
	default:
		s.repeatAtomic(h.BTH.PSN)
	}
}

package roce

import (
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// The unreliable connection (IBA §9.8.2): packets have PSNs and are not answered. A request is done
// when it was sent. The responder sees from the PSNs that packets are missing. Then the current
// message is lost, and the next First or Only packet is accepted whatever its PSN is.

// stale is how far behind the next PSN a packet counts as repeated or delayed by the network: its
// data arrived before, or is lost. A packet further behind means that the peer began anew.
const stale = 256

// retireSent completes the packets that were sent.
func (s *requester) retireSent(now transport.Time) {
	for s.sent > 0 {
		s.retire(now, abi.WCSuccess, 0)
	}
	s.settle(now)
}

// takeUnreliable handles a packet of the peer. An error in it costs only the message that it
// belongs to (IBA §9.9.3, classes D and E).
func (s *responder) takeUnreliable(now transport.Time, h *wire.Headers, data []byte) {
	if s.user == nil || !s.user.Serving() {
		return
	}
	s.user.Heard()
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
	part, ok := s.part.with(op, info, h, len(data), s.segment)
	if !ok {
		s.part = message{}
		return
	}
	p := s.packet(op, info, h, len(data))
	if p.Sends() {
		p.Offset = uint32(s.part.bytes)
	} else {
		p.Addr, p.RKey = part.addr-uint64(len(data)), part.rkey
	}
	if v := s.user.Place(now, p, data); v.Refusal != transport.Accepted || !s.user.Serving() {
		s.part = message{}
		return
	}
	if s.account.Trace != nil {
		s.noteTaken(h, len(data), info.Last && p.TakesReceive())
	}
	s.account.PushesRx++
	s.account.BytesRx += uint64(len(data))
	if s.part = part; !info.Last {
		return
	}
	s.part = message{}
	if p.TakesReceive() {
		s.message++
		s.user.Complete(now, p, part.bytes, abi.WCSuccess)
	}
}

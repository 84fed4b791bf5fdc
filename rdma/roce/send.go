package roce

import (
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
	falcon "github.com/falcon-vnic/vnic/rdma/wire"
)

// send sends the next entry, for the first time or again.
func (s *requester) send(now transport.Time, b []byte) int {
	if s.notReady || s.dead || s.user == nil || s.sent == s.entries.Len() {
		return 0
	}
	e := s.entries.At(s.sent)
	left := e.packets - e.got
	if s.flying == 0 {
		s.limit.raise(e.message.Add(-1)) // all messages before it are answered, whatever credits the peer reports
	}
	if !s.may(e, s.flying) {
		return 0
	}
	h := s.begin(e.op, e.next())
	n, ok := s.fill(h, e, b)
	if !ok {
		e.failed = abi.WCLocProtErr
		s.e.failing.PushBack(&s.failing, s.conn)
		return 0
	}
	if s.account.Trace != nil {
		s.noteRequest(e)
	}
	if s.terms.Unreliable {
		s.sent++
		s.flying += left
		s.e.gone.PushBack(&s.gone, s)
		return s.finish(h, b, n)
	}
	if !e.again {
		s.limit.sent(e)
	}
	s.quiet++
	h.BTH.AckReq = s.asks(e)
	if h.BTH.AckReq {
		s.quiet = 0
		if !e.again {
			s.rtt.sent(now, e.psn)
		}
	}
	if e.again {
		s.port.stats.Again++
		s.repeats++
	}
	if s.flying == 0 && !s.rewound {
		s.heard = now
	}
	if last := e.end().Add(-1); last.Sub(s.ahead) > 0 {
		s.ahead = last
	}
	s.unpark(e)
	s.sent++
	s.flying += left
	if !s.timer.Armed() {
		s.watch(now)
	}
	return s.finish(h, b, n)
}

// may reports whether an entry can be sent with flying packets in flight. While the peer is not
// ready, only one is sent at a time.
func (s *requester) may(e *entry, flying int) bool {
	if e.growing || e.failed != abi.WCSuccess || !s.limit.allows(e) {
		return false
	}
	return s.terms.Unreliable || flying == 0 || !s.lastRNR && flying+e.packets-e.got <= s.traffic.Window
}

// asks decides whether an entry asks for an answer, which costs the peer a packet. Linux answers no
// packet that does not ask. These packets ask: one in a quarter of the window, the last one of all,
// and one after which sending would stop for good, because the next packet does not fit the window
// beside those that nobody asked about, or waits for a receive of the peer. The end of a message
// asks too, for its completion, unless so much waits behind it that the next answer comes in time
// to post more.
func (s *requester) asks(e *entry) bool {
	switch {
	case e.pulls(), s.quiet >= s.traffic.Window/4, s.sent+1 == s.entries.Len():
		return true
	case e.op.Info().Last && (s.traffic.Rate > 0 || s.entries.Len()-s.sent <= s.traffic.Window/2):
		return true
	}
	return !s.may(s.entries.At(s.sent+1), s.quiet)
}

// fill fills in the headers of an entry and reads its data into b. ok is false if the data cannot
// be read.
func (s *requester) fill(h *wire.Headers, e *entry, b []byte) (n int, ok bool) {
	r, x, info := e.r, &e.r.WQE, e.op.Info()
	h.XRC.SRQ = x.RemoteSRQN
	h.BTH.Solicited = r.TakesReceive() && info.Last && x.Flags&abi.SendSolicited != 0
	h.Imm.Data, h.Inv.RKey = x.Imm, x.Imm
	skip := uint32(e.got * s.segment)
	h.RETH = falcon.RETH{VA: x.RemoteAddr, RKey: x.RKey, Length: r.Length}
	if !info.Data {
		h.RETH.VA, h.RETH.Length = x.RemoteAddr+uint64(e.offset+skip), e.length-skip
		h.Atomic = falcon.AtomicETH{VA: x.RemoteAddr, RKey: x.RKey, SwapAdd: x.CompareAdd}
		switch e.op {
		case wire.CmpSwap, wire.MaskedCmpSwap:
			h.Atomic.SwapAdd, h.Atomic.Compare = x.Swap, x.CompareAdd
			h.Mask = falcon.AtomicMaskETH(r.Masks)
		case wire.MaskedFetchAdd:
			h.Mask = falcon.AtomicMaskETH{SwapAdd: r.Masks.SwapAdd, Compare: ^uint64(0)} // RFC 7306 §5.2.1
		}
		return 0, true
	}
	if n = int(e.length); n == 0 {
		return 0, true
	}
	at := s.dataAt(e.op)
	return n, s.user.Gather(r, e.offset, b[at:at+n]) == nil
}

// burst is how much may be sent at once under a rate limit, as time at that rate in ns.
const burst transport.Time = 100e3

// held reports whether the rate forbids to send a packet now. If so, it arms a timer.
func (s *requester) held(now transport.Time) bool {
	s.e.congestion.Sent(&s.traffic, now, 0)
	if s.traffic.Rate == 0 || now+burst >= s.paced {
		return false
	}
	s.arm(&s.pace, kindPace, s.paced-burst)
	return true
}

// left records that a packet of n bytes was sent.
func (s *requester) left(now transport.Time, n int) {
	s.e.congestion.Sent(&s.traffic, now, n)
	if r := s.traffic.Rate; r > 0 {
		s.paced = max(s.paced, now) + transport.Time(float64(n)*1e9/r)
	}
}

package roce

import (
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
	falcon "github.com/falcon-vnic/vnic/rdma/wire"
)

// transmit makes the next packet of the connection in b and returns its length; 0: there is none
// now. Acknowledgements go ahead of what the rate may hold back.
func (c *Conn) transmit(now transport.Time, b []byte) (n int) {
	if n = c.sendCNP(now, b); n > 0 {
		return n
	}
	if n = c.sendReply(b); n > 0 || c.held(now) {
		return n
	}
	n = c.sendNext(now, b)
	c.left(now, n)
	return n
}

// burst is what may leave at once under a bound of the rate, in ns of it.
const burst transport.Time = 100e3

// held reports whether the rate does not let a packet leave now.
func (c *Conn) held(now transport.Time) bool {
	c.e.congestion.Sent(&c.traffic, now, 0)
	if c.traffic.Rate == 0 || now+burst >= c.paced {
		return false
	}
	c.e.timers.Arm(&c.pace, c, kindPace, c.paced-burst)
	return true
}

// left notes that a packet of n bytes left.
func (c *Conn) left(now transport.Time, n int) {
	c.e.congestion.Sent(&c.traffic, now, n)
	if r := c.traffic.Rate; r > 0 {
		c.paced = max(c.paced, now) + transport.Time(float64(n)*1e9/r)
	}
}

// sendNext sends an answer or a request, in turns.
func (c *Conn) sendNext(now transport.Time, b []byte) (n int) {
	if c.turn = !c.turn; c.turn {
		if n = c.sendRequest(now, b); n > 0 {
			return n
		}
	}
	if n = c.sendAnswer(now, b); n > 0 || c.turn {
		return n
	}
	return c.sendRequest(now, b)
}

// begin writes what all packets of the connection have in common into the engine's headers.
func (c *Conn) begin(op wire.Opcode, psn wire.PSN) *wire.Headers {
	h := &c.e.out
	*h = wire.Headers{BTH: wire.BTH{Opcode: op | c.service, Migrated: true, PKey: wire.DefaultPKey, DestQP: c.terms.Peer, PSN: psn}}
	return h
}

// at is where a packet's data begins in b.
func (c *Conn) dataAt(op wire.Opcode) int { return c.way.HeaderLen() + (op | c.service).HeaderLen() }

// finish completes a packet whose n data bytes are in their place in b, and returns its length.
func (c *Conn) finish(h *wire.Headers, b []byte, n int) int {
	at, ip := c.dataAt(h.BTH.Opcode), c.way.HeaderLen()
	pad := falcon.PadLen(n)
	h.BTH.Pad = uint8(pad)
	h.Append(b[ip:ip])
	end := at + n + pad
	clear(b[at+n : end])
	c.way.Put(b[:end+wire.ICRCLen])
	return end + wire.ICRCLen
}

// sendRequest sends the next entry, for the first time or again.
func (c *Conn) sendRequest(now transport.Time, b []byte) int {
	s := &c.requester
	if s.notReady || c.dead || c.user == nil || s.sent == s.entries.Len() {
		return 0
	}
	e := s.entries.At(s.sent)
	left := e.packets - e.got
	if e.growing || e.failed != abi.WCSuccess || s.flying > 0 && s.flying+left > s.traffic.Window {
		return 0
	}
	h := c.begin(e.op, e.psn.Add(e.got))
	n, ok := c.fill(h, e, b)
	if !ok {
		e.failed = abi.WCLocProtErr
		c.e.failing.PushBack(&c.failing, c)
		return 0
	}
	s.quiet++
	h.BTH.AckReq = c.asks(e, left)
	if h.BTH.AckReq {
		s.quiet = 0
		if !e.again {
			s.rtt.sent(now, e.psn)
		}
	}
	if e.again {
		c.port.stats.Again++
	}
	if s.flying == 0 && !s.rewound {
		s.heard, s.rto = now, s.rtt.rto()
	}
	if last := e.end().Add(-1); last.Sub(s.ahead) > 0 {
		s.ahead = last
	}
	s.sent++
	s.flying += left
	if !s.timer.Armed() {
		c.watch(now)
	}
	return c.finish(h, b, n)
}

// asks decides whether an entry asks for an answer. Linux answers no packet that does not; so the
// last one of a message does, the last that the window allows, and some between.
func (c *Conn) asks(e *entry, packets int) bool {
	s := &c.requester
	return e.op.Info().Last || s.quiet >= ackEvery || s.sent+1 == s.entries.Len() || s.flying+packets >= s.traffic.Window
}

// fill puts the headers of an entry together and its data into its place. ok is false when that is
// not to be had.
func (c *Conn) fill(h *wire.Headers, e *entry, b []byte) (n int, ok bool) {
	r, x, info := e.r, &e.r.WQE, e.op.Info()
	h.XRC.SRQ = x.RemoteSRQN
	h.BTH.Solicited = info.Data && info.Last && x.Flags&abi.SendSolicited != 0
	h.Imm.Data, h.Inv.RKey = x.Imm, x.Imm
	skip := uint32(e.got * c.segment)
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
	at := c.dataAt(e.op)
	return n, c.user.Gather(r, e.offset, b[at:at+n]) == nil
}

// sendReply sends an acknowledgement that is due, behind the answers to what came before.
func (c *Conn) sendReply(b []byte) int {
	r := &c.reply
	if !r.due || c.answers.Len() > 0 && r.psn.Sub(c.answers.At(0).psn) >= 0 {
		return 0
	}
	r.due = false
	h := c.begin(wire.Acknowledge, r.psn)
	h.AETH = wire.AETH{Syndrome: r.syndrome, MSN: c.msn}
	return c.finish(h, b, 0)
}

// sendAnswer sends the next packet of the answer that is first.
func (c *Conn) sendAnswer(now transport.Time, b []byte) int {
	if c.answers.Len() == 0 || c.spoiled {
		return 0
	}
	a := c.answers.At(0)
	if a.at > now {
		c.e.timers.Arm(&c.again, c, kindAnswer, a.at)
		return 0
	}
	op, n := a.opcode(), 0
	if !a.atomic {
		n = min(int(a.length), c.segment)
	}
	h := c.begin(op, a.psn)
	h.AETH, h.AtomicAck.Original = wire.AETH{Syndrome: wire.SynAck, MSN: a.msn}, a.original
	if at := c.dataAt(op); n > 0 && a.memory.Read(a.addr, b[at:at+n]) != nil {
		c.spoiled = true
		c.e.failing.PushBack(&c.failing, c)
		return 0
	}
	a.begun = true
	a.psn, a.left, a.addr, a.length = a.psn.Add(1), a.left-1, a.addr+uint64(n), a.length-uint32(n)
	if a.left == 0 {
		c.answers.Pop().memory = nil
	}
	return c.finish(h, b, n)
}

func (a *answer) opcode() wire.Opcode {
	switch {
	case a.atomic:
		return wire.AtomicResponse
	case !a.begun && a.left == 1:
		return wire.ReadRespOnly
	case !a.begun:
		return wire.ReadRespFirst
	case a.left == 1:
		return wire.ReadRespLast
	}
	return wire.ReadRespMiddle
}

// cnpEvery is the least time between two congestion notifications to one queue pair.
const cnpEvery transport.Time = 50e3

// sendCNP tells the peer of marks (Annex A17.9.3, CA17-44). One stands for all within a while.
func (c *Conn) sendCNP(now transport.Time, b []byte) int {
	if !c.marked {
		return 0
	}
	c.marked = false
	if now < c.told+cnpEvery && c.told != 0 {
		return 0
	}
	c.told = now
	c.port.stats.CNPsSent++
	h := &c.e.out
	*h = wire.Headers{BTH: wire.BTH{Opcode: wire.CNP, BECN: true, PKey: wire.DefaultPKey, DestQP: c.terms.Peer}}
	ip := c.way.HeaderLen()
	h.Append(b[ip:ip])
	n := ip + wire.BTHLen + wire.CNPReserved + wire.ICRCLen
	clear(b[ip+wire.BTHLen : n])
	c.way.Put(b[:n])
	return n
}

// unreadable ends what could not be sent because its memory is gone.
func (c *Conn) unreadable(now transport.Time) {
	switch {
	case c.user == nil:
		return
	case c.spoiled:
		psn := c.answers.At(0).psn
		for c.answers.Len() > 0 {
			c.answers.Pop().memory = nil
		}
		c.account.Refused++
		c.refused, c.spoiled = wire.SynOperation, false
		c.answer(psn, wire.SynOperation)
		c.user.Refused(now, transport.Operation)
	default:
		c.failFront(now)
	}
	if c.user != nil {
		c.user.Settle(now)
	}
}

package roce

import (
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// maxMessage is the longest message in bytes (IBA: 2^31).
const maxMessage = 1 << 31

// request takes a request of the peer by its PSN (IBA §9.7.4.1.2).
func (c *Conn) request(now transport.Time, h *wire.Headers, data []byte) {
	d := h.BTH.PSN.Sub(c.expected)
	if c.user == nil || !c.user.Serving() {
		c.unserved(h, d)
		return
	}
	c.user.Heard()
	switch {
	case d < 0:
		c.duplicate(now, h)
	case d == 0:
		c.take(now, h, data)
	case !c.missed:
		c.missed = true
		c.answer(c.expected, wire.SynSequence)
	}
}

// unserved is a request that the queue pair does not take any more: what it had taken is
// acknowledged, what it had refused is refused again, the rest is as if nobody were there.
func (c *Conn) unserved(h *wire.Headers, d int) {
	switch {
	case d >= 0 && c.refused != 0:
		c.answer(c.expected, c.refused)
	case d < 0 && h.BTH.Opcode.Info().Data:
		c.answer(c.expected.Add(-1), wire.SynAck)
	case d < 0:
		c.repeatAtomic(h.BTH.PSN)
	}
}

// answer makes an acknowledgement due.
func (c *Conn) answer(psn wire.PSN, syndrome wire.Syndrome) {
	c.acknowledge(psn, syndrome)
	c.wake()
}

// operation is the opcode without its service; ok is false if the packet names a shared receive
// queue that is not to be reached this way.
func (c *Conn) operation(h *wire.Headers) (op wire.Opcode, ok bool) {
	op = h.BTH.Opcode &^ wire.ServiceMask
	if h.BTH.Opcode&wire.Vendor == wire.Vendor {
		op |= wire.Vendor
	}
	return op, !c.terms.XRC || c.user.Address(h.XRC.SRQ)
}

// take takes the request that is next.
func (c *Conn) take(now transport.Time, h *wire.Headers, data []byte) {
	op, ok := c.operation(h)
	switch {
	case !ok:
		c.refuse(now, transport.Invalid, true)
	case op.Info().Data:
		c.takeData(now, op, h, data)
	case c.part.kind != noMessage:
		c.refuse(now, transport.Invalid, true)
	case op == wire.ReadRequest:
		c.takeRead(now, h)
	default:
		c.takeAtomic(now, op, h)
	}
}

// takeData takes a packet of a SEND or WRITE.
func (c *Conn) takeData(now transport.Time, op wire.Opcode, h *wire.Headers, data []byte) {
	info := op.Info()
	part, ok := c.part.with(op, info, h, len(data), c.segment)
	if !ok {
		c.refuse(now, transport.Invalid, true)
		return
	}
	p := c.packet(op, info, h, len(data))
	if p.Sends() {
		p.Offset = uint32(c.part.bytes)
	} else {
		p.Addr, p.RKey = part.addr-uint64(len(data)), part.rkey
	}
	switch v := c.user.Place(now, p, data); v.Refusal {
	case transport.Accepted:
	case transport.NotReady:
		c.account.RNRTx++
		c.missed = true
		c.answer(c.expected, wire.SynRNR|wire.Syndrome(c.user.RNRTimer()))
		return
	default:
		c.refuse(now, v.Refusal, false)
		return
	}
	c.account.PushesRx++
	c.account.BytesRx += uint64(len(data))
	bytes := part.bytes
	if c.part = part; info.Last {
		c.part = message{}
	}
	c.took(1, info.Last)
	if h.BTH.AckReq {
		c.answer(h.BTH.PSN, wire.SynAck)
	}
	if info.Last && p.TakesReceive() {
		c.message++
		c.user.Complete(now, p, bytes, abi.WCSuccess)
	}
}

// took moves on by n PSNs.
func (c *Conn) took(n int, last bool) {
	c.expected, c.missed = c.expected.Add(n), false
	if last {
		c.msn = (c.msn + 1) & wire.PSNMask
	}
}

// with is the message with another packet; ok is false when that does not belong there (IBA
// §9.7.4.1.5, §9.7.4.1.6).
func (m message) with(op wire.Opcode, info *wire.Info, h *wire.Headers, n, segment int) (message, bool) {
	kind := writing
	if op <= wire.SendOnlyImm || op == wire.SendLastInv || op == wire.SendOnlyInv {
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

// packet is what a packet with n data bytes says.
func (c *Conn) packet(op wire.Opcode, info *wire.Info, h *wire.Headers, n int) *transport.Packet {
	p := &c.e.packet
	*p = transport.Packet{
		Op: abi.OpWrite, First: info.First, Last: info.Last, Solicited: h.BTH.Solicited, ID: uint32(h.BTH.PSN), Message: c.message,
		Length: uint32(n), Claimed: uint32(n), Imm: h.Imm.Data,
	}
	switch op {
	case wire.SendFirst, wire.SendMiddle, wire.SendLast, wire.SendOnly:
		p.Op = abi.OpSend
	case wire.SendLastImm, wire.SendOnlyImm:
		p.Op = abi.OpSendImm
	case wire.SendLastInv, wire.SendOnlyInv:
		p.Op, p.Imm = abi.OpSendInv, h.Inv.RKey
	case wire.WriteLastImm, wire.WriteOnlyImm:
		p.Op = abi.OpWriteImm
	}
	return p
}

// refuse answers with a NAK, which neither side survives. Where tell is set the queue pair does not
// know yet.
func (c *Conn) refuse(now transport.Time, r transport.Refusal, tell bool) {
	c.account.Refused++
	c.port.stats.Refused++
	if r != transport.NotServing {
		c.refused = syndromeOf(r)
		c.answer(c.expected, c.refused)
	}
	if tell {
		c.user.Refused(now, r)
	}
}

// syndromeOf is how a refusal travels.
func syndromeOf(r transport.Refusal) wire.Syndrome {
	switch r {
	case transport.Access:
		return wire.SynAccess
	case transport.Operation:
		return wire.SynOperation
	}
	return wire.SynInvalid
}

package rof

import (
	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// handlePush takes a SEND or WRITE packet.
func (c *Conn) handlePush(now falcon.Time, ev *falcon.Event) {
	h := &c.e.headers
	n, err := h.Parse(ev.Data)
	switch {
	case err == nil && h.RBTH.DestQP != c.terms.QPN:
		// RDMA over Falcon §6.9: it does not stop the QP, whose packet this is not.
		c.account.CIDMismatches++
		c.carrier.NackPush(now, ev.RSN, falconwire.NackCID, 0, 0)
		return
	case !c.user.Serving():
		c.refuse(now, ev, synNotServing)
		return
	}
	c.user.Heard()
	data, ok := h.RBTH.Data(ev.Data, n)
	if err != nil || !ok || !c.addressed(h) || h.RBTH.Opcode.Info().Kind != wire.KindPushData {
		c.refuseFatal(now, ev, transport.Invalid)
		return
	}
	switch c.admit(h.RBTH.SN) {
	case tooEarly:
		c.deferPush(now, ev)
		return
	case misplaced:
		c.refuseFatal(now, ev, transport.Sequence)
		return
	}
	a := c.arrival(h, ev.RSN, data)
	if c.terms.Unordered && a.TakesReceive() && !(a.First && a.Last) || c.ordered && !c.legal(a) {
		c.refuseFatal(now, ev, transport.Invalid) // messages that take a receive are of one packet in unordered mode
		return
	}
	switch v := c.user.Place(now, &a.Packet, data); {
	case v.Refusal == transport.NotReady:
		c.deferPush(now, ev)
		return
	case v.Refusal != transport.Accepted && !v.Alone:
		c.refuse(now, ev, syndromeOf(v.Refusal))
		return
	case v.Refusal != transport.Accepted:
		a.failed = v.Failed
		c.account.Refused++
		c.carrier.NackPush(now, ev.RSN, falconwire.NackCIE, 0, uint8(syndromeOf(v.Refusal)))
	default:
		if a.failed = v.Failed; a.failed == abi.WCSuccess {
			c.took(a, h.RBTH.Opcode)
		}
		c.carrier.AckPush(now, ev.RSN)
	}
	c.arrived(now, h.RBTH.SN, a)
}

// took counts a packet whose data is in its place.
func (c *Conn) took(a *arrival, op wire.Opcode) {
	c.account.PushesRx++
	c.account.BytesRx += uint64(a.Length)
	if c.account.Trace != nil {
		flags := uint8(0)
		if a.TakesReceive() && a.Last {
			flags = trace.Wanted
		}
		c.noteDelivered(a.ID, op, a.Length, flags)
	}
}

// arrival is what a packet with data says.
func (c *Conn) arrival(h *wire.Headers, rsn uint32, data []byte) *arrival {
	op := h.RBTH.Opcode
	info := op.Info()
	a := &c.e.arrival // field by field: a value would be made elsewhere and copied
	a.present, a.class, a.failed = true, classWrite, abi.WCSuccess
	a.Op, a.First, a.Last, a.Solicited, a.Spoiled = abi.OpWrite, info.First, info.Last, h.RBTH.Solicited, h.RBTH.CE
	a.ID, a.Message, a.Offset, a.Length, a.Imm = rsn, h.SETH.RMSN, h.OETH.Offset, uint32(len(data)), h.Imm.Data
	a.Addr, a.RKey, a.Claimed = h.RETH.VA, h.RETH.RKey, h.RETH.Length
	switch op {
	case wire.SendFirst, wire.SendMiddle, wire.SendLast, wire.SendOnly:
		a.Op, a.class = abi.OpSend, classSend
	case wire.SendLastImm, wire.SendOnlyImm:
		a.Op, a.class = abi.OpSendImm, classSend
	case wire.SendLastInv, wire.SendOnlyInv:
		a.Op, a.class, a.Imm = abi.OpSendInv, classSend, h.Inv.RKey
	case wire.WriteLastImm, wire.WriteOnlyImm:
		a.Op = abi.OpWriteImm
	}
	return a
}

// addressed strips the service off the opcode and reports whether the request is one for this QP:
// of its service and, with XRC, for an SRQ it delivers to.
func (c *Conn) addressed(h *wire.Headers) bool {
	op := h.RBTH.Opcode
	if op&^wire.ServiceMask != c.service {
		return false
	}
	h.RBTH.Opcode = op & wire.ServiceMask
	return !c.terms.XRC || c.user.Address(h.XRC.SRQ)
}

// deferPush answers receiver not ready: falcon at the peer sends the packet again after the QP's
// RNR timer.
func (c *Conn) deferPush(now falcon.Time, ev *falcon.Event) {
	c.notReady = true
	c.account.RNRTx++
	timer := c.user.RNRTimer()
	c.carrier.NackPush(now, ev.RSN, falconwire.NackRNR, timer, uint8(synRNR)|timer)
}

// refuse answers with an error, which the requester does not survive.
func (c *Conn) refuse(now falcon.Time, ev *falcon.Event, syn syndrome) {
	c.account.Refused++
	c.carrier.NackPush(now, ev.RSN, falconwire.NackNRE, 0, uint8(syn))
}

// refuseFatal answers with an error that both sides do not survive.
func (c *Conn) refuseFatal(now falcon.Time, ev *falcon.Event, r transport.Refusal) {
	c.refuse(now, ev, syndromeOf(r))
	c.user.Refused(now, r)
}

// arrived retires the packet with number sn, or keeps it until those before it have arrived.
func (c *Conn) arrived(now falcon.Time, sn uint32, a *arrival) {
	t := &c.target
	if sn == t.expected {
		t.notReady = false
	}
	if t.arrivals == nil {
		t.expected++
		c.retire(now, a)
		return
	}
	if c.terms.Unordered && a.TakesReceive() {
		c.user.Complete(now, &a.Packet, uint64(a.Length), a.failed)
	}
	t.arrivals[sn%reorderWindow] = *a
	for c.user.Serving() {
		next := &t.arrivals[t.expected%reorderWindow]
		if !next.present {
			return
		}
		next.present = false
		t.expected++
		if c.terms.Unordered {
			continue // it was complete when it came
		}
		if !t.legal(next) {
			c.account.Refused++
			c.user.Refused(now, transport.Invalid)
			return
		}
		c.retire(now, next)
	}
}

// retire accounts for the next packet in SN order and completes the message it ends.
func (c *Conn) retire(now falcon.Time, a *arrival) {
	t := &c.target
	if a.class == classPull {
		t.nextPull++
		return
	}
	if a.First {
		t.class, t.bytes, t.failed = a.class, 0, abi.WCSuccess
	}
	t.bytes += uint64(a.Length)
	if a.failed != abi.WCSuccess {
		t.failed = a.failed
	}
	if !a.Last {
		return
	}
	t.class = classNone
	if a.TakesReceive() {
		t.message++
		c.user.Complete(now, &a.Packet, t.bytes, t.failed)
	}
}

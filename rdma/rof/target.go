package rof

import (
	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// target is the half of a connection that serves the requests of the peer.
//
//	push ─▶ admit by SN ─▶ place data ─▶ acknowledge ─▶ retire in SN order ─▶ message complete
//	pull ─▶ admit by SN ─▶ check, run atomics ─▶ respond; the data of a READ is gathered when falcon sends it
//
// On an ordered connection packets arrive in SN order and are retired at once. On an unordered one
// data is placed as it comes (weakly ordered mode, RDMA over Falcon §6.2) and arrivals wait in a
// ring for the ones before them, so that messages complete in the order of the requests.
type target struct {
	expected uint32 // SN of the next packet to retire
	message  uint32 // RMSN of the oldest unfinished message that takes a receive
	nextPull uint32 // RMSN of the next READ or atomic request

	failed   abi.WCStatus // of that message: it completes in error; WCSuccess while it does not
	class    messageClass // of the message that retired packets left unfinished
	bytes    uint64       // of that message, retired
	notReady bool         // the packet expected was told to come again

	arrivals []arrival // ring by SN; unordered connections only
	servedPulls
}

type messageClass uint8

const (
	classNone messageClass = iota
	classSend
	classWrite
	classPull
)

const (
	// reorderWindow is how many sequence numbers a packet may be ahead on an unordered connection.
	reorderWindow = 1024
	// maxMessage is the longest message in bytes (InfiniBand: 2^31).
	maxMessage = 1 << 31
)

// arrival is a packet that was taken: what retiring it needs.
type arrival struct {
	transport.Packet
	present bool
	class   messageClass
	failed  abi.WCStatus // the message completes in error
}

// begin prepares for a new connection.
func (t *target) begin(ordered bool) {
	t.expected, t.message, t.nextPull = 1, 1, 1
	if !ordered {
		t.arrivals = make([]arrival, reorderWindow)
	}
}

// admission is what becomes of a packet by its sequence number.
type admission uint8

const (
	admitted admission = iota
	tooEarly           // behind one that was told to come again, or too far ahead: come again
	misplaced
)

func (t *target) admit(sn uint32) admission {
	d := int32(sn - t.expected)
	switch {
	case t.arrivals == nil && d == 0:
		return admitted
	case t.arrivals == nil && d > 0 && t.notReady:
		return tooEarly
	case t.arrivals == nil || d < 0:
		return misplaced
	case d >= reorderWindow:
		return tooEarly
	case t.arrivals[sn%reorderWindow].present:
		return misplaced
	}
	return admitted
}

// legal checks a packet's place in its message. It holds for the next packet in SN order.
func (t *target) legal(a *arrival) bool {
	bytes := t.bytes
	if a.First {
		if t.class != classNone {
			return false
		}
		bytes = 0
	} else if t.class != a.class {
		return false
	}
	switch {
	case a.class == classPull:
		return a.Message == t.nextPull
	case a.TakesReceive() && a.Message != t.message,
		a.class == classSend && uint64(a.Offset) != bytes,
		bytes+uint64(a.Length) > maxMessage:
		return false
	}
	return true
}

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
	a := &c.e.arrival
	*a = arrival{present: true, class: classWrite, Packet: transport.Packet{
		Op: abi.OpWrite, First: info.First, Last: info.Last, Solicited: h.RBTH.Solicited, Spoiled: h.RBTH.CE, ID: rsn,
		Message: h.SETH.RMSN, Offset: h.OETH.Offset, Length: uint32(len(data)), Imm: h.Imm.Data,
		Addr: h.RETH.VA, RKey: h.RETH.RKey, Claimed: h.RETH.Length,
	}}
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

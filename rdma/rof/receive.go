package rof

import (
	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// handlePush handles a SEND or WRITE packet.
func (t *target) handlePush(now falcon.Time, ev *falcon.Event) {
	h := &t.e.headers
	n, err := h.Parse(ev.Data)
	switch {
	case err == nil && h.RBTH.DestQP != t.terms.QPN:
		// RDMA over Falcon §6.9: it does not stop the QP, because the packet is not for it.
		t.account.CIDMismatches++
		t.carrier.NackPush(now, ev.RSN, falconwire.NackCID, 0, 0)
		return
	case !t.user.Serving():
		t.refuse(now, ev, synNotServing)
		return
	}
	t.user.Heard()
	data, ok := h.RBTH.Data(ev.Data, n)
	if err != nil || !ok || !t.addressed(h) || h.RBTH.Opcode.Info().Kind != wire.KindPushData {
		t.refuseFatal(now, ev, transport.Invalid)
		return
	}
	switch t.admit(h.RBTH.SN) {
	case tooEarly:
		t.deferPush(now, ev)
		return
	case misplaced:
		t.refuseFatal(now, ev, transport.Sequence)
		return
	}
	a := t.arrival(h, ev.RSN, data)
	if t.terms.Unordered && a.TakesReceive() && !(a.First && a.Last) || t.ordered && !t.legal(a) {
		t.refuseFatal(now, ev, transport.Invalid) // in unordered mode a message that takes a receive is one packet
		return
	}
	switch v := t.user.Place(now, &a.Packet, data); {
	case v.Refusal == transport.NotReady:
		t.deferPush(now, ev)
		return
	case v.Refusal != transport.Accepted && !v.Alone:
		t.refuse(now, ev, syndromeOf(v.Refusal))
		return
	case v.Refusal != transport.Accepted:
		a.failed = v.Failed
		t.account.Refused++
		t.carrier.NackPush(now, ev.RSN, falconwire.NackCIE, 0, uint8(syndromeOf(v.Refusal)))
	default:
		if a.failed = v.Failed; a.failed == abi.WCSuccess {
			t.took(a, h.RBTH.Opcode)
		}
		t.carrier.AckPush(now, ev.RSN)
	}
	t.arrived(now, h.RBTH.SN, a)
}

// took counts a packet whose data was placed.
func (t *target) took(a *arrival, op wire.Opcode) {
	t.account.PushesRx++
	t.account.BytesRx += uint64(a.Length)
	if t.account.Trace != nil {
		flags := uint8(0)
		if a.TakesReceive() && a.Last {
			flags = trace.Wanted
		}
		t.noteDelivered(a.ID, op, a.Length, flags)
	}
}

// arrival decodes a packet with data.
func (t *target) arrival(h *wire.Headers, rsn uint32, data []byte) *arrival {
	op := h.RBTH.Opcode
	info := op.Info()
	a := &t.e.arrival // field by field: a composite literal would be built elsewhere and copied
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

// addressed strips the service off the opcode and reports whether the request is for this QP: of
// its service and, with XRC, for an SRQ that it delivers to.
func (t *target) addressed(h *wire.Headers) bool {
	op := h.RBTH.Opcode
	if op&^wire.ServiceMask != t.service {
		return false
	}
	h.RBTH.Opcode = op & wire.ServiceMask
	return !t.terms.XRC || t.user.Address(h.XRC.SRQ)
}

// deferPush answers receiver-not-ready. The peer's falcon sends the packet again after the QP's RNR
// timer.
func (t *target) deferPush(now falcon.Time, ev *falcon.Event) {
	t.notReady = true
	t.account.RNRTx++
	timer := t.user.RNRTimer()
	t.carrier.NackPush(now, ev.RSN, falconwire.NackRNR, timer, uint8(synRNR)|timer)
}

// refuse answers with an error that fails the requester.
func (t *target) refuse(now falcon.Time, ev *falcon.Event, syn syndrome) {
	t.account.Refused++
	t.carrier.NackPush(now, ev.RSN, falconwire.NackNRE, 0, uint8(syn))
}

// refuseFatal answers with an error that fails both sides.
func (t *target) refuseFatal(now falcon.Time, ev *falcon.Event, r transport.Refusal) {
	t.refuse(now, ev, syndromeOf(r))
	t.user.Refused(now, r)
}

// arrived retires the packet with number sn, or keeps it until those before it have arrived.
func (t *target) arrived(now falcon.Time, sn uint32, a *arrival) {
	if sn == t.expected {
		t.notReady = false
	}
	if t.arrivals == nil {
		t.expected++
		t.retire(now, a)
		return
	}
	if t.terms.Unordered && a.TakesReceive() {
		t.user.Complete(now, &a.Packet, uint64(a.Length), a.failed)
	}
	t.arrivals[sn%reorderWindow] = *a
	for t.user.Serving() {
		next := &t.arrivals[t.expected%reorderWindow]
		if !next.present {
			return
		}
		next.present = false
		t.expected++
		if t.terms.Unordered {
			continue // it was completed when it arrived
		}
		if !t.legal(next) {
			t.account.Refused++
			t.user.Refused(now, transport.Invalid)
			return
		}
		t.retire(now, next)
	}
}

// retire counts the next packet in SN order and completes the message that it ends.
func (t *target) retire(now falcon.Time, a *arrival) {
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
		t.user.Complete(now, &a.Packet, t.bytes, t.failed)
	}
}

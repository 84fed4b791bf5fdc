package rof

import (
	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// target is the half of a connection that serves the requests of the peer.
//
//	push ─▶ admit by SN ─▶ place data ─▶ acknowledge ─▶ retire in SN order ─▶ message complete
//	pull ─▶ admit by SN ─▶ check, run atomics ─▶ respond (pulls.go)
//
// On an ordered connection packets arrive in SN order and are retired at once. On an unordered one
// data is placed as it arrives (weakly ordered mode, RDMA over Falcon §6.2). The arrivals wait in a
// ring for those before them, so that messages complete in the order of the requests.
type target struct {
	end *end

	expected uint32 // SN of the next packet to retire
	message  uint32 // RMSN of the oldest unfinished message that takes a receive
	nextPull uint32 // RMSN of the next READ or atomic request

	failed   abi.WCStatus // of the current message: WCSuccess unless it completes in error
	class    messageClass // of the message that is partly retired
	bytes    uint64       // retired bytes of that message
	notReady bool         // the expected packet was answered receiver-not-ready

	arrivals []arrival // ring by SN; unordered connections only
	pulls    pulls
}

type messageClass uint8

const (
	classNone messageClass = iota
	classSend
	classWrite
	classPull
)

const (
	// reorderWindow limits how far ahead a packet's sequence number may be on an unordered
	// connection.
	reorderWindow = 1024
	// maxMessage is the longest message in bytes (InfiniBand: 2^31).
	maxMessage = 1 << 31
)

// arrival holds what is needed to retire a packet that was accepted.
type arrival struct {
	transport.Packet
	present bool
	class   messageClass
	failed  abi.WCStatus // the message completes in error
}

// begin prepares for a new connection.
func (t *target) begin() {
	t.expected, t.message, t.nextPull = 1, 1, 1
	if !t.end.ordered {
		t.arrivals = make([]arrival, reorderWindow)
	}
}

// handlePush handles a SEND or WRITE packet.
func (t *target) handlePush(now falcon.Time, ev *falcon.Event) {
	h, user := &t.end.e.headers, t.end.user
	n, err := h.Parse(ev.Data)
	switch {
	case err == nil && h.RBTH.DestQP != t.end.terms.QPN:
		t.refuseStranger(now, ev) // it does not stop the QP, because the packet is not for it
		return
	case !user.Serving():
		t.refuse(now, ev, synNotServing)
		return
	}
	user.Heard()
	data, ok := h.RBTH.Data(ev.Data, n)
	if err != nil || !ok || !t.addressed(h) || h.RBTH.Opcode.Info().Kind != ib.KindData {
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
	a := t.decode(h, ev.RSN, data)
	if t.end.terms.Unordered && a.TakesReceive() && !(a.First && a.Last) || t.end.ordered && !t.legal(a) {
		t.refuseFatal(now, ev, transport.Invalid) // in unordered mode a message that takes a receive is one packet
		return
	}
	switch v := user.Place(now, &a.Packet, data); {
	case v.Refusal == transport.NotReady:
		t.deferPush(now, ev)
		return
	case v.Refusal != transport.Accepted && !v.Alone:
		t.refuse(now, ev, syndromeOf(v.Refusal))
		return
	case v.Refusal != transport.Accepted:
		a.failed = v.Failed
		t.end.account.Refused++
		t.end.pipe.NackPush(now, ev.RSN, falconwire.NackCIE, 0, uint8(syndromeOf(v.Refusal)))
	default:
		if a.failed = v.Failed; a.failed == abi.WCSuccess {
			t.placed(a, h.RBTH.Opcode)
		}
		t.end.pipe.AckPush(now, ev.RSN)
	}
	t.arrived(now, h.RBTH.SN, a)
}

// addressed strips the service off the opcode and reports whether the request is for this QP: of
// its service and, with XRC, for an SRQ that it delivers to.
func (t *target) addressed(h *wire.Headers) bool {
	op := h.RBTH.Opcode
	if op&ib.ServiceMask != t.end.service {
		return false
	}
	h.RBTH.Opcode = op &^ ib.ServiceMask
	return !t.end.terms.XRC || t.end.user.Address(h.XRC.SRQ)
}

// admission is the verdict on a packet's sequence number.
type admission uint8

const (
	admitted admission = iota
	tooEarly           // behind a packet that was not ready, or too far ahead: deliver again
	misplaced
)

func (t *target) admit(sn uint32) admission {
	switch d := int32(sn - t.expected); {
	case d < 0:
		return misplaced
	case t.arrivals == nil && d == 0:
		return admitted
	case t.arrivals == nil && t.notReady:
		return tooEarly
	case t.arrivals == nil:
		return misplaced
	case d >= reorderWindow:
		return tooEarly
	case t.arrivals[sn%reorderWindow].present:
		return misplaced
	}
	return admitted
}

// decode decodes a packet with data, whose opcode has no service any more.
func (t *target) decode(h *wire.Headers, rsn uint32, data []byte) *arrival {
	info := h.RBTH.Opcode.Info()
	a := &t.end.e.arrival // field by field: a composite literal would be built elsewhere and copied
	a.present, a.class, a.failed = true, classWrite, abi.WCSuccess
	a.Op, a.First, a.Last, a.Solicited, a.Spoiled = info.Verb, info.First, info.Last, h.RBTH.Solicited, h.RBTH.CE
	a.ID, a.Message, a.Offset, a.Length, a.Imm = rsn, h.SETH.RMSN, h.OETH.Offset, uint32(len(data)), h.Imm.Data
	a.Addr, a.RKey, a.Claimed = h.RETH.VA, h.RETH.RKey, h.RETH.Length
	if a.Sends() {
		a.class = classSend
	}
	if a.Op == abi.OpSendInv {
		a.Imm = h.Inv.RKey
	}
	return a
}

// legal checks a packet's place in its message. Call it for the next packet in SN order.
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

// placed counts a packet whose data is in memory.
func (t *target) placed(a *arrival, op ib.Opcode) {
	t.end.account.PushesRx++
	t.end.account.BytesRx += uint64(a.Length)
	if t.end.notes.On() {
		flags := uint8(0)
		if a.TakesReceive() && a.Last {
			flags = trace.Wanted
		}
		t.end.notes.Delivered(a.ID, uint8(op), a.Length, flags)
	}
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
	user := t.end.user
	if t.end.terms.Unordered && a.TakesReceive() {
		user.Complete(now, &a.Packet, uint64(a.Length), a.failed)
	}
	t.arrivals[sn%reorderWindow] = *a
	for user.Serving() {
		next := &t.arrivals[t.expected%reorderWindow]
		if !next.present {
			return
		}
		next.present = false
		t.expected++
		if t.end.terms.Unordered {
			continue // it was completed when it arrived
		}
		if !t.legal(next) {
			t.end.account.Refused++
			user.Refused(now, transport.Invalid)
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
		t.end.user.Complete(now, &a.Packet, t.bytes, t.failed)
	}
}

// deferPush answers receiver-not-ready. The peer's falcon sends the packet again after the QP's RNR
// timer.
func (t *target) deferPush(now falcon.Time, ev *falcon.Event) {
	t.notReady = true
	t.end.account.RNRTx++
	timer := t.end.user.RNRTimer()
	t.end.pipe.NackPush(now, ev.RSN, falconwire.NackRNR, timer, uint8(ib.SynRNR)|timer)
}

// refuse answers a push with an error that fails the requester.
func (t *target) refuse(now falcon.Time, ev *falcon.Event, syn ib.Syndrome) {
	t.end.account.Refused++
	t.end.pipe.NackPush(now, ev.RSN, falconwire.NackNRE, 0, uint8(syn))
}

// refuseFatal answers a push with an error that fails both sides.
func (t *target) refuseFatal(now falcon.Time, ev *falcon.Event, r transport.Refusal) {
	t.refuse(now, ev, syndromeOf(r))
	t.end.user.Refused(now, r)
}

// refuseStranger answers a request that is for another QP than the connection's (RDMA over Falcon
// §6.9).
func (t *target) refuseStranger(now falcon.Time, ev *falcon.Event) {
	t.end.account.CIDMismatches++
	t.end.pipe.NackPush(now, ev.RSN, falconwire.NackCID, 0, 0)
}

// takeUnreliable handles a packet of the peer of an unreliable connection (IBA §9.8.2.2), which is
// an ordered Falcon connection. Each push is acknowledged, even if it was dropped, so the requester
// is never told about this queue pair. Falcon sends lost packets again from guest memory, so a send
// is done when Falcon no longer needs that memory.
func (t *target) takeUnreliable(now falcon.Time, ev *falcon.Event) {
	h := &t.end.e.headers
	n, err := h.Parse(ev.Data)
	if err == nil && h.RBTH.DestQP != t.end.terms.QPN {
		t.refuseStranger(now, ev)
		return
	}
	t.end.pipe.AckPush(now, ev.RSN)
	if !t.end.user.Serving() {
		return
	}
	t.end.user.Heard()
	data, ok := h.RBTH.Data(ev.Data, n)
	if err != nil || !ok || !t.addressed(h) || !t.continues(h) || !t.placeUnreliable(now, h, ev.RSN, data) {
		t.class = classNone // the rest of the current message is lost
	}
}

// continues reports whether a packet begins a message or is the next one of the current message. If
// packets are missing, it first drops the current message.
func (t *target) continues(h *wire.Headers) bool {
	first, missing := h.RBTH.Opcode.Info().First, h.RBTH.SN != t.expected
	t.expected = h.RBTH.SN + 1
	if first || missing {
		t.class, t.bytes = classNone, 0
	}
	return first || !missing
}

// placeUnreliable places the data of a packet, and completes the message that it ends. It returns
// false if the message is lost.
func (t *target) placeUnreliable(now falcon.Time, h *wire.Headers, rsn uint32, data []byte) bool {
	a := t.decode(h, rsn, data)
	if a.Message = t.message; a.Spoiled || !t.legal(a) {
		return false
	}
	v := t.end.user.Place(now, &a.Packet, data)
	if v.Refusal != transport.Accepted || !t.end.user.Serving() {
		return false
	}
	t.placed(a, h.RBTH.Opcode)
	t.class = a.class
	t.bytes += uint64(a.Length)
	if a.Last {
		t.class = classNone
		if a.TakesReceive() {
			t.message++
			t.end.user.Complete(now, &a.Packet, t.bytes, abi.WCSuccess)
		}
	}
	return true
}

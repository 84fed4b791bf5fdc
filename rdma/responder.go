package rdma

import (
	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/verbs"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// responder is the receiving half of a QP.
//
//	push ─▶ admit by SN ─▶ place data ─▶ acknowledge ─▶ retire in SN order ─▶ receive completion
//	pull ─▶ admit by SN ─▶ check, run atomics ─▶ respond; the data of a READ is gathered when falcon sends it
//
// On an ordered connection packets arrive in SN order and are retired at once. On an unordered one
// data is placed as it comes (weakly ordered mode, RDMA over Falcon §6.2) and arrivals wait in a
// ring for the ones before them, so that completions keep the order of the requests.
type responder struct {
	sn       uint32 // of the next packet to retire
	rmsn     uint32 // of the oldest unfinished message that takes a receive
	fetched  uint32 // of the message the next receive in the RQ will serve
	pullRMSN uint32 // of the next READ or atomic request
	receives []verbs.Receive
	maxSGE   int
	srq      *verbs.SRQ // that the packet at hand names (XRC)

	failed   abi.WCStatus // of that message: it completes in error; WCSuccess while it does not
	class    messageClass // of the message that retired packets left unfinished
	bytes    uint64       // of that message, retired
	notReady bool         // the packet at sn was told to come again

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

// reorderWindow is how many sequence numbers a packet may be ahead on an unordered connection.
const reorderWindow = 1024

// arrival is a packet that was taken: what retiring it needs.
type arrival struct {
	present   bool
	solicited bool
	opcode    wire.Opcode
	rmsn      uint32
	offset    uint32
	length    uint32
	imm       uint32       // immediate data, or the key to invalidate
	failed    abi.WCStatus // the message completes in error
	rsn       uint32       // of the transaction that brought it
}

// class is the class of message an opcode belongs to.
func class(op wire.Opcode) messageClass {
	switch {
	case op <= wire.SendOnlyImm, op == wire.SendLastInv, op == wire.SendOnlyInv:
		return classSend
	case op <= wire.WriteOnlyImm:
		return classWrite
	}
	return classPull
}

// receives reports whether the packet takes a receive: a SEND, or a WRITE's last with immediate
// data.
func (a *arrival) receives() bool {
	return class(a.opcode) == classSend || a.opcode == wire.WriteLastImm || a.opcode == wire.WriteOnlyImm
}

// connect prepares for a new connection.
// receives is the depth of the queue that receives come from.
func (r *responder) connect(ordered bool, receives uint32) {
	r.drop()
	r.sn, r.rmsn, r.fetched, r.pullRMSN = 1, 1, 1, 1
	n := uint32(1) // an ordered connection has one message in progress
	r.arrivals = nil
	if !ordered {
		n = min(receives, maxPushes)
		r.arrivals = make([]arrival, reorderWindow)
	}
	if uint32(len(r.receives)) != n {
		r.receives = make([]verbs.Receive, n)
		sges := make(verbs.SGL, int(n)*r.maxSGE)
		for i := range r.receives {
			r.receives[i].SGEs, sges = sges[:0:r.maxSGE], sges[r.maxSGE:]
		}
	}
}

// drop forgets messages in progress and responses not yet acknowledged.
func (r *responder) drop() {
	r.fetched = r.rmsn
	for i := range r.receives {
		r.receives[i].Release()
	}
	r.class, r.bytes, r.notReady = classNone, 0, false
	clear(r.arrivals)
	r.dropServed()
}

// admission is what becomes of a packet by its sequence number.
type admission uint8

const (
	admitted admission = iota
	tooEarly           // behind one that was told to come again, or too far ahead: come again
	misplaced
)

func (r *responder) admit(sn uint32) admission {
	d := int32(sn - r.sn)
	switch {
	case r.arrivals == nil && d == 0:
		return admitted
	case r.arrivals == nil && d > 0 && r.notReady:
		return tooEarly
	case r.arrivals == nil || d < 0:
		return misplaced
	case d >= reorderWindow:
		return tooEarly
	case r.arrivals[sn%reorderWindow].present:
		return misplaced
	}
	return admitted
}

// legal checks a packet's place in its message. It holds for the next packet in SN order.
func (r *responder) legal(a *arrival) bool {
	info := a.opcode.Info()
	class, bytes := class(a.opcode), r.bytes
	if info.First {
		if r.class != classNone {
			return false
		}
		bytes = 0
	} else if r.class != class {
		return false
	}
	switch {
	case class == classPull:
		return a.rmsn == r.pullRMSN
	case a.receives() && a.rmsn != r.rmsn,
		class == classSend && uint64(a.offset) != bytes,
		bytes+uint64(a.length) > maxMessage:
		return false
	}
	return true
}

// handlePush takes a SEND or WRITE packet.
func (q *QP) handlePush(now falcon.Time, ev *falcon.Event) {
	h := &q.fn.e.headers
	n, err := h.Parse(ev.Data)
	switch {
	case err == nil && h.RBTH.DestQP != q.number:
		// RDMA over Falcon §6.9: it does not stop the QP, whose packet this is not.
		q.fn.stats.CIDMismatches++
		q.conn.NackPush(now, ev.RSN, falconwire.NackCID, 0, 0)
		return
	case !q.serving():
		q.fn.stats.Refused++
		q.conn.NackPush(now, ev.RSN, falconwire.NackNRE, 0, uint8(synNotServing))
		return
	}
	q.hear()
	data, ok := h.RBTH.Data(ev.Data, n)
	if err != nil || !ok || !q.addressed(h) || h.RBTH.Opcode.Info().Kind != wire.KindPushData {
		q.refusePush(now, ev, synInvalid, nil, abi.WCSuccess)
		return
	}
	switch q.rsp.admit(h.RBTH.SN) {
	case tooEarly:
		q.deferPush(now, ev)
		return
	case misplaced:
		q.refusePush(now, ev, synSequence, nil, abi.WCSuccess)
		return
	}
	a := arrival{
		present: true, solicited: h.RBTH.Solicited, opcode: h.RBTH.Opcode, rmsn: h.SETH.RMSN, offset: h.OETH.Offset,
		length: uint32(len(data)), imm: h.Imm.Data, rsn: ev.RSN,
	}
	if a.opcode == wire.SendLastInv || a.opcode == wire.SendOnlyInv {
		a.imm = h.Inv.RKey
	}
	if q.unordered && !a.single() || q.ordered && !q.rsp.legal(&a) {
		q.refusePush(now, ev, synInvalid, nil, abi.WCSuccess)
		return
	}
	switch syn, v, st := q.placePush(h, &a, data); syn {
	case synNone:
	case synRNR:
		q.deferPush(now, ev)
		return
	default:
		if q.cie && (v != nil || !a.receives()) {
			q.completeInError(now, ev, h.RBTH.SN, &a, syn, st)
			return
		}
		if v != nil && st == abi.WCSuccess {
			v = nil
		}
		q.refusePush(now, ev, syn, v, st)
		return
	}
	if a.failed != abi.WCSuccess {
		q.conn.AckPush(now, ev.RSN)
		q.arrived(now, h.RBTH.SN, &a)
		return
	}
	q.fn.stats.PushesRx++
	q.fn.stats.BytesRx += uint64(len(data))
	if q.fn.Trace != nil {
		flags := uint8(0)
		if a.receives() && a.opcode.Info().Last {
			flags = trace.Wanted
		}
		q.noteDelivered(q.conn, ev.RSN, a.opcode, a.length, flags)
	}
	q.conn.AckPush(now, ev.RSN)
	q.arrived(now, h.RBTH.SN, &a)
}

// completeInError refuses a packet whose message then fails at both ends, and nothing else does.
func (q *QP) completeInError(now falcon.Time, ev *falcon.Event, sn uint32, a *arrival, syn syndrome, st abi.WCStatus) {
	q.fn.stats.Refused++
	if st == abi.WCSuccess {
		st = abi.WCLocAccessErr
	}
	a.failed = st
	q.conn.NackPush(now, ev.RSN, falconwire.NackCIE, 0, uint8(syn))
	q.arrived(now, sn, a)
}

// single reports whether the packet may come in unordered mode: messages that take a receive are of
// one packet.
func (a *arrival) single() bool {
	info := a.opcode.Info()
	return !a.receives() || info.First && info.Last
}

// deferPush answers receiver not ready: falcon at the peer sends the packet again after the QP's
// RNR timer.
func (q *QP) deferPush(now falcon.Time, ev *falcon.Event) {
	q.rsp.notReady = true
	q.fn.stats.RNRTx++
	timer := q.attr.minRNRTimer
	q.conn.NackPush(now, ev.RSN, falconwire.NackRNR, timer, uint8(synRNR)|timer)
}

// addressed strips the service off the opcode and reports whether the request is one for this QP:
// of its service and, with XRC, for an SRQ of its domain.
func (q *QP) addressed(h *wire.Headers) bool {
	op := h.RBTH.Opcode
	if op&^wire.ServiceMask != q.service {
		return false
	}
	h.RBTH.Opcode = op & wire.ServiceMask
	if q.typ != abi.QPTypeXRCRecv {
		return q.typ != abi.QPTypeXRCSend
	}
	s := q.fn.SRQ(h.XRC.SRQ)
	q.rsp.srq = s
	return s != nil && s.In(q.xrcd)
}

// refusePush answers with an error, which both sides' QPs do not survive. recv is how the receive
// v, which the packet would have gone to, completes; WCSuccess when it does not.
func (q *QP) refusePush(now falcon.Time, ev *falcon.Event, syn syndrome, v *verbs.Receive, recv abi.WCStatus) {
	q.fn.stats.Refused++
	q.conn.NackPush(now, ev.RSN, falconwire.NackNRE, 0, uint8(syn))
	if v != nil && recv != abi.WCSuccess {
		q.finishRecv(now, v, recv)
	}
	q.failServing(now, syn)
}

// failServing moves the QP to ERR because a request of the peer was refused.
func (q *QP) failServing(now falcon.Time, syn syndrome) {
	typ, reason := abi.EventQPFatal, "refused a request of the peer"
	switch syn {
	case synSequence:
		typ, reason = abi.EventQPReqErr, "a request of the peer was out of sequence"
	case synInvalid:
		q.violated = true
		typ, reason = abi.EventQPReqErr, "the peer sent an invalid request"
	case synAccess:
		typ, reason = abi.EventQPAccessErr, "the peer asked for memory it may not access"
	case synOperation:
		reason = "a request of the peer could not be carried out"
	}
	q.failAs(now, typ, syn.status(), reason)
}

// hear notes that the peer sends. A driver that waits in RTR learns that it may go on.
func (q *QP) hear() {
	if q.heard {
		return
	}
	q.heard = true
	if q.state == abi.QPStateRTR {
		q.fn.Event(abi.EventCommEst, q.number, 0, "")
	}
}

// placePush checks the rights a packet needs and writes its data to memory. It returns synRNR when
// the packet has to come again, and with an error the receive it hit and the status of that, if
// any.
func (q *QP) placePush(h *wire.Headers, a *arrival, data []byte) (syndrome, *verbs.Receive, abi.WCStatus) {
	var v *verbs.Receive
	if a.receives() {
		s := q.source()
		switch {
		case int32(a.rmsn-q.rsp.rmsn) < 0:
			return synInvalid, nil, abi.WCSuccess
		case s != nil && s.Failed():
			return synOperation, nil, abi.WCSuccess
		}
		if v = q.receiveFor(a.rmsn); v == nil {
			return synRNR, nil, abi.WCSuccess
		}
		switch {
		case v.SRQ != s || v.Done:
			return synInvalid, nil, abi.WCSuccess // the message named another SRQ before, or is over
		case v.Status != abi.WCSuccess: // though a WRITE with immediate data puts nothing there
			return synOperation, v, v.Status
		}
	}
	switch {
	case !h.RBTH.CE:
	case q.cie:
		a.failed = abi.WCRemAbortErr // the peer gave it up
		return synNone, v, abi.WCSuccess
	default: // what it holds is no data
		return synOperation, v, abi.WCRemAbortErr
	}
	if class(a.opcode) == classSend {
		switch {
		case uint64(a.offset)+uint64(len(data)) > v.Capacity:
			return synInvalid, v, abi.WCLocLenErr
		case (a.opcode == wire.SendLastInv || a.opcode == wire.SendOnlyInv) && q.fn.Invalidatable(q.domain(), &q.windows, a.imm) == nil:
			return synAccess, v, abi.WCSuccess
		}
		var c verbs.Cursor
		c.Advance(v.SGEs, a.offset)
		if v.SGEs.Scatter(c, data) != nil {
			return synOperation, v, abi.WCLocProtErr
		}
		return synNone, nil, abi.WCSuccess
	}
	if h.RETH.Length != uint32(len(data)) {
		return synInvalid, v, abi.WCSuccess
	}
	if len(data) == 0 {
		return synNone, nil, abi.WCSuccess // InfiniBand: the key of an empty WRITE is not looked at
	}
	m := q.remote(h.RETH.RKey, h.RETH.VA, uint64(len(data)), abi.AccessRemoteWrite)
	if m == nil {
		return synAccess, v, abi.WCSuccess
	}
	if m.Write(h.RETH.VA, data) != nil {
		return synOperation, v, abi.WCSuccess
	}
	return synNone, nil, abi.WCSuccess
}

// remote looks up a region or window for the peer: the right must be given by the QP and by the
// region, and a window must be bound to the QP.
func (q *QP) remote(rkey uint32, va, n uint64, right uint32) *verbs.MR {
	if q.attr.access&right == 0 {
		return nil
	}
	if q.fn.Faults() != nil && q.fn.Faults().Key(q.number) {
		return nil
	}
	return q.fn.Remote(q.domain(), &q.windows, rkey, va, n, right)
}

// arrived retires the packet with number sn, or keeps it until those before it have arrived.
func (q *QP) arrived(now falcon.Time, sn uint32, a *arrival) {
	r := &q.rsp
	if sn == r.sn {
		r.notReady = false
	}
	if r.arrivals == nil {
		r.sn++
		q.retire(now, a)
		return
	}
	if q.unordered {
		q.retireNow(now, a)
	}
	r.arrivals[sn%reorderWindow] = *a
	for q.serving() {
		next := &r.arrivals[r.sn%reorderWindow]
		if !next.present {
			return
		}
		next.present = false
		r.sn++
		if q.unordered {
			continue // it was retired when it came
		}
		if !r.legal(next) {
			q.fn.stats.Refused++
			q.failServing(now, synInvalid)
			return
		}
		q.retire(now, next)
	}
}

// retire accounts for the next packet in SN order and completes the message it ends.
func (q *QP) retire(now falcon.Time, a *arrival) {
	r := &q.rsp
	info := a.opcode.Info()
	if class(a.opcode) == classPull {
		r.pullRMSN++
		return
	}
	if info.First {
		r.class, r.bytes, r.failed = class(a.opcode), 0, abi.WCSuccess
	}
	r.bytes += uint64(a.length)
	if a.failed != abi.WCSuccess {
		r.failed = a.failed
	}
	if !info.Last {
		return
	}
	r.class = classNone
	if !a.receives() {
		return
	}
	v := r.receive(r.rmsn)
	r.rmsn++
	q.received(now, v, a, r.bytes, r.failed)
}

// retireNow completes the message of one packet, and moves on to the oldest that is not complete.
func (q *QP) retireNow(now falcon.Time, a *arrival) {
	r := &q.rsp
	if !a.receives() {
		return
	}
	v := r.receive(a.rmsn)
	v.Done = true
	for r.receive(r.rmsn).Done {
		r.receive(r.rmsn).Done = false
		r.rmsn++
	}
	q.received(now, v, a, uint64(a.length), a.failed)
}

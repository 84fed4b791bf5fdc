package rof

import (
	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// responseDone handles the completion of a pull response.
func (t *target) responseDone(tag uint64) {
	s := t.serving(tag)
	if s == nil {
		return
	}
	if t.account.Trace != nil {
		t.noteResponse(trace.Acked, s)
	}
	t.endServed(tag, s)
}

// pullRetry is the delay of a pull that cannot be served now, because there was no free slot or it
// arrived too early.
const pullRetry falcon.Time = 80e3

// handlePull handles a READ or atomic request. It answers an error with a complete-in-error
// response, since Falcon acknowledged the request before it was delivered (Falcon §8.5.3.5).
func (t *target) handlePull(now falcon.Time, ev *falcon.Event) {
	h := &t.e.headers
	_, err := h.Parse(ev.Data)
	if err == nil && h.RBTH.DestQP != t.terms.QPN {
		t.account.CIDMismatches++ // RDMA over Falcon §6.9
		t.carrier.NackPush(now, ev.RSN, falconwire.NackCID, 0, 0)
		return
	}
	if at := t.user.AnswerAt(now); at > now { // the response counts towards the rate, so the request waits
		t.account.RateWaits++
		t.deferPull(now, ev, at)
		return
	}
	t.initOnce()
	if len(t.freeServed) == 0 {
		t.deferPull(now, ev, now+pullRetry)
		return
	}
	slot := t.freeServed[len(t.freeServed)-1]
	s := &t.served[slot]
	*s = served{opcode: wire.ReadRespOnly, sn: h.RBTH.SN, rsn: ev.RSN, sink: h.STETH}
	a := &t.e.arrival
	*a = arrival{present: true, class: classPull, Packet: transport.Packet{First: true, Last: true, Message: h.SETH.RMSN}}
	v := t.examine(h, err, s, a, ev.Length)
	if v == later {
		t.deferPull(now, ev, now+pullRetry)
		return
	}
	length := s.opcode.HeaderLen() + int(s.length) + int(s.pad)
	t.freeServed = t.freeServed[:len(t.freeServed)-1]
	s.busy = true
	t.unsent++
	tag := uint64(t.servedEra)<<32 | uint64(slot)
	if t.account.Trace != nil {
		t.noteDelivered(ev.RSN, h.RBTH.Opcode, s.length, trace.Answering)
	}
	if err := t.carrier.RespondPull(now, ev.RSN, tag, length); err != nil {
		t.endServed(tag, s) // the connection is closing, or falcon gave the request up
	}
	switch v {
	case carriedOut:
		t.account.PullsRx++
		t.user.Answered(int(s.length))
		t.arrived(now, h.RBTH.SN, a)
		return
	case failedAlone:
		t.account.Refused++
		t.arrived(now, h.RBTH.SN, a)
	case failed:
		t.account.Refused++
		t.user.Refused(now, s.refusal)
	case notServing:
		t.account.Refused++
	}
}

// pullVerdict is the result of examining a pull request.
type pullVerdict uint8

const (
	carriedOut  pullVerdict = iota
	later                   // deliver it again later
	notServing              // refused because the queue pair does not serve requests
	failed                  // refused, and the queue pair fails
	failedAlone             // refused, and the queue pair continues
)

// examine checks a pull request, carries out an atomic and records in s what the response needs.
// err is the error of parsing the headers, or nil. asked is the maximum length of the response.
func (t *target) examine(h *wire.Headers, err error, s *served, a *arrival, asked int) pullVerdict {
	addressed := err == nil && t.addressed(h)
	op := h.RBTH.Opcode
	if atomicOpcode(op) {
		s.opcode = wire.AtomicResponse
	}
	t.user.Heard()
	if !t.user.Serving() {
		s.refusal = transport.NotServing
		return notServing
	}
	if !addressed || op.Info().Kind != wire.KindPullRequest {
		s.refusal = transport.Invalid
		return failed
	}
	switch t.admit(h.RBTH.SN) {
	case tooEarly:
		return later
	case misplaced:
		s.refusal = transport.Sequence
		return failed
	}
	switch {
	case !t.ordered && !t.terms.Unordered && atomicOpcode(op) && h.RBTH.SN != t.expected:
		return later // RFC 7306 §5.2.1: atomics in the order sent
	case t.ordered && !t.legal(a), t.unsent >= t.terms.Serves: // RDMA over Falcon §8.3.2: RMSN counts packets
		s.refusal = transport.Invalid
		return failed
	}
	switch s.refusal = t.serve(h, s, asked); {
	case s.refusal == transport.Accepted:
		return carriedOut
	case t.terms.InError:
		return failedAlone
	}
	return failed
}

// deferPull makes falcon deliver the request again later. The peer gets no answer: the shortage is
// not one of the receiver, and the peer's RNR retries do not count it.
func (t *target) deferPull(now falcon.Time, ev *falcon.Event, until falcon.Time) {
	t.account.PullsDeferred++
	t.carrier.DeferPull(now, ev.RSN, until)
}

// serve carries out an atomic at once, and checks a READ as far as possible before its response is
// sent.
func (t *target) serve(h *wire.Headers, s *served, asked int) (r transport.Refusal) {
	if s.opcode == wire.AtomicResponse {
		if asked != wire.PullLength(h.RBTH.Opcode, 8) {
			return transport.Invalid
		}
		x := &t.e.atomic
		*x = atomicOf(h)
		s.original, r = t.user.Atomic(x)
		return r
	}
	n := h.RETH.Length
	if n > uint32(t.segment) {
		return transport.Invalid
	}
	pad := uint8(wire.PadLen(int(n)))
	switch padded := wire.PullLength(wire.ReadRequest, int(n)); asked {
	case padded:
	case padded - int(pad): // the peer does not count the pad, so it gets none
		pad = 0
	default:
		return transport.Invalid
	}
	if s.memory, r = t.user.Read(h.RETH.RKey, h.RETH.VA, n); r == transport.Accepted {
		s.va, s.length, s.pad = h.RETH.VA, n, pad
	}
	return r
}

// atomicOpcode reports whether op, without its service, is a request for an atomic.
func atomicOpcode(op wire.Opcode) bool {
	return op == wire.CmpSwap || op == wire.FetchAdd || op == wire.MaskedCmpSwap || op == wire.MaskedFetchAdd
}

// atomicOf returns the atomic that a request asks for.
func atomicOf(h *wire.Headers) transport.Atomic {
	x := transport.Atomic{
		Op: abi.OpMaskedFetchAdd, Addr: h.Atomic.VA, RKey: h.Atomic.RKey, Compare: h.Atomic.Compare, SwapAdd: h.Atomic.SwapAdd,
		Masks: abi.AtomicMasks(h.Mask),
	}
	switch h.RBTH.Opcode {
	case wire.CmpSwap:
		x.Op = abi.OpCmpSwap
	case wire.FetchAdd:
		x.Op = abi.OpFetchAdd
	case wire.MaskedCmpSwap:
		x.Op = abi.OpMaskedCmpSwap
	}
	return x
}

// fillResponse writes one pull response packet. If the memory of a READ is gone, it writes a
// complete-in-error response.
func (t *target) fillResponse(tag uint64, dst []byte) (int, error) {
	s := t.serving(tag)
	if s == nil {
		return 0, errGone
	}
	n := s.opcode.HeaderLen()
	if len(dst) < n+int(s.length)+int(s.pad) {
		return 0, errGone
	}
	t.answered(s)
	if t.account.Trace != nil {
		t.noteResponse(trace.Scheduled, s)
	}
	length, pad := int(s.length), int(s.pad)
	if length > 0 && s.refusal == transport.Accepted {
		if err := s.memory.Read(s.va, dst[n:n+length]); err != nil {
			s.refusal = transport.Operation
		}
	}
	if s.refusal != transport.Accepted {
		length, pad = 0, 0
	}
	h := &t.e.headers
	*h = wire.Headers{
		RBTH: wire.RBTH{
			Opcode: s.opcode | t.service, DestQP: t.terms.Peer, SN: s.sn, Pad: uint8(pad),
			CE: s.refusal != transport.Accepted, Syndrome: uint8(syndromeOf(s.refusal)),
		},
		AtomicAck: wire.AtomicAckETH{Original: s.original},
		STETH:     s.sink,
	}
	h.Append(dst[:0])
	clear(dst[n+length : n+length+pad])
	return n + length + pad, nil
}

package rdma

import (
	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/verbs"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// served is a pull request of the peer between its arrival and the acknowledgement of the response:
// what every transmission of the response is made from. An atomic ran when it arrived, once; only
// its result is here.
type served struct {
	busy     bool
	sent     bool        // the response, at least once
	opcode   wire.Opcode // of the response
	syndrome syndrome    // complete in error
	sn       uint32
	rsn      uint32 // of the transaction
	sink     wire.STETH
	mr       *verbs.MR // READ
	va       uint64
	length   uint32
	pad      uint8  // bytes behind the data
	original uint64 // atomic
}

// servedPulls is the fixed set of pull requests a QP serves at a time, made when the first one
// comes. A response's tag names slot and epoch.
type servedPulls struct {
	served     []served
	freeServed []uint16
	servedEra  uint32
	unsent     int // of them, whose response was never sent: the peer cannot have it
}

func (p *servedPulls) initOnce() {
	if p.served != nil {
		return
	}
	p.served = make([]served, maxServed)
	p.freeServed = make([]uint16, 0, maxServed)
	p.dropServed()
}

// dropServed forgets all of them; falcon gets no more data for their responses.
func (p *servedPulls) dropServed() {
	p.servedEra++
	p.unsent = 0
	p.freeServed = p.freeServed[:0]
	for i := range p.served {
		p.served[i] = served{}
		p.freeServed = append(p.freeServed, uint16(len(p.served)-1-i))
	}
}

// serving returns what tag names, nil when it was dropped.
func (p *servedPulls) serving(tag uint64) *served {
	i := uint32(tag)
	if uint32(tag>>32) != p.servedEra || i >= uint32(len(p.served)) || !p.served[i].busy {
		return nil
	}
	return &p.served[i]
}

// answered notes that the response to s is on its way, for the first time or again.
func (p *servedPulls) answered(s *served) {
	if !s.sent {
		s.sent = true
		p.unsent--
	}
}

// responseDone takes the end of a response: nothing of it is needed any more.
func (q *QP) responseDone(tag uint64) {
	if s := q.rsp.serving(tag); s != nil {
		q.rsp.answered(s)
		*s = served{}
		q.rsp.freeServed = append(q.rsp.freeServed, uint16(tag))
	}
}

// pullRetry is how long a pull that cannot be served now waits: it found no free slot, or comes too
// early.
const pullRetry falcon.Time = 80e3

// handlePull takes a READ or atomic request. An error is answered with a complete-in-error
// response, since a pull request was acknowledged before it came here (Falcon §8.5.3.5).
func (q *QP) handlePull(now falcon.Time, ev *falcon.Event) {
	r := &q.rsp
	h := &q.fn.e.headers
	_, err := h.Parse(ev.Data)
	if err == nil && h.RBTH.DestQP != q.number {
		q.fn.stats.CIDMismatches++ // RDMA over Falcon §6.9
		q.conn.NackPush(now, ev.RSN, falconwire.NackCID, 0, 0)
		return
	}
	if at := q.fn.rate.Ready(now); at > now { // the response counts, so the request waits
		q.fn.stats.RateWaits++
		q.deferPull(now, ev, at)
		return
	}
	r.initOnce()
	if len(r.freeServed) == 0 {
		q.deferPull(now, ev, now+pullRetry)
		return
	}
	slot := r.freeServed[len(r.freeServed)-1]
	s := &r.served[slot]
	*s = served{opcode: wire.ReadRespOnly, sn: h.RBTH.SN, rsn: ev.RSN, sink: h.STETH}
	addressed := err == nil && q.addressed(h)
	if atomicOp(h.RBTH.Opcode) != 0 {
		s.opcode = wire.AtomicResponse
	}
	fatal, own := true, false // own: the request's own error
	q.hear()
	a := arrival{present: true, opcode: h.RBTH.Opcode, rmsn: h.SETH.RMSN}
	switch {
	case !q.serving():
		s.syndrome, fatal = synNotServing, false
	case !addressed, h.RBTH.Opcode.Info().Kind != wire.KindPullRequest:
		s.syndrome = synInvalid
	default:
		switch r.admit(h.RBTH.SN) {
		case tooEarly:
			q.deferPull(now, ev, now+pullRetry)
			return
		case misplaced:
			s.syndrome = synSequence
		default:
			if !q.ordered && !q.unordered && atomicOp(h.RBTH.Opcode) != 0 && h.RBTH.SN != r.sn {
				q.deferPull(now, ev, now+pullRetry) // RFC 7306 §5.2.1: atomics in the order sent
				return
			}
			switch {
			case q.ordered && !r.legal(&a), r.unsent >= int(q.ird): // RDMA over Falcon §8.3.2: RMSN counts packets
				s.syndrome = synInvalid
			default:
				s.syndrome, own = q.serve(h, s, ev.Length), true
			}
		}
	}
	length := s.opcode.HeaderLen() + int(s.length) + int(s.pad)
	r.freeServed = r.freeServed[:len(r.freeServed)-1]
	s.busy = true
	r.unsent++
	tag := uint64(r.servedEra)<<32 | uint64(slot)
	if q.fn.Trace != nil {
		q.noteDelivered(q.conn, ev.RSN, h.RBTH.Opcode, s.length, trace.Answering)
	}
	if err := q.conn.RespondPull(now, ev.RSN, tag, length); err != nil {
		q.responseDone(tag) // the connection is closing, or falcon gave the request up
	}
	if s.syndrome != synNone {
		q.fn.stats.Refused++
		switch {
		case own && q.cie:
			q.arrived(now, h.RBTH.SN, &a)
		case fatal:
			q.failServing(now, s.syndrome)
		}
		return
	}
	q.fn.stats.PullsRx++
	q.fn.rate.Charge(int(s.length))
	q.arrived(now, h.RBTH.SN, &a)
}

// deferPull makes falcon deliver the request again later. That is no answer to the peer: what is
// short here is not the receiver's, and counts against nobody's RNR retries.
func (q *QP) deferPull(now falcon.Time, ev *falcon.Event, until falcon.Time) {
	q.fn.stats.PullsDeferred++
	q.conn.DeferPull(now, ev.RSN, until)
}

// serve checks a request, carries out an atomic and notes what the response needs.
func (q *QP) serve(h *wire.Headers, s *served, requested int) syndrome {
	if s.opcode == wire.AtomicResponse {
		return q.serveAtomic(h, s, requested)
	}
	n := h.RETH.Length
	if n > uint32(q.segment) || q.attr.maxDest == 0 {
		return synInvalid
	}
	pad := uint8(wire.PadLen(int(n)))
	switch padded := wire.PullLength(wire.ReadRequest, int(n)); requested {
	case padded:
	case padded - int(pad): // the peer does not count the pad: it gets none
		pad = 0
	default:
		return synInvalid
	}
	if n == 0 {
		return synNone // InfiniBand: the key of an empty READ is not looked at
	}
	if s.mr = q.remote(h.RETH.RKey, h.RETH.VA, uint64(n), abi.AccessRemoteRead); s.mr == nil {
		return synAccess
	}
	s.va, s.length, s.pad = h.RETH.VA, n, pad
	return synNone
}

// atomicOp is the operation that a request, without its service, asks for; 0 for one that is no
// atomic.
func atomicOp(op wire.Opcode) abi.Opcode {
	switch op {
	case wire.CmpSwap:
		return abi.OpCmpSwap
	case wire.FetchAdd:
		return abi.OpFetchAdd
	case wire.MaskedCmpSwap:
		return abi.OpMaskedCmpSwap
	case wire.MaskedFetchAdd:
		return abi.OpMaskedFetchAdd
	}
	return 0
}

func (q *QP) serveAtomic(h *wire.Headers, s *served, requested int) syndrome {
	x := &h.Atomic
	if requested != wire.PullLength(h.RBTH.Opcode, 8) || q.attr.maxDest == 0 || x.VA&7 != 0 {
		return synInvalid
	}
	m := q.remote(x.RKey, x.VA, 8, abi.AccessRemoteAtomic)
	if m == nil {
		return synAccess
	}
	if !m.Aligned(x.VA) {
		return synInvalid
	}
	var err error
	s.original, err = m.Atomic(x.VA, &verbs.Atomic{
		Op: atomicOp(h.RBTH.Opcode), Compare: x.Compare, SwapAdd: x.SwapAdd, Masks: abi.AtomicMasks(h.Mask),
	})
	if err != nil {
		return synOperation
	}
	return synNone
}

// fillResponse writes one pull response packet. A READ whose memory is gone becomes a
// complete-in-error response.
func (q *QP) fillResponse(tag uint64, dst []byte) (int, error) {
	s := q.rsp.serving(tag)
	if s == nil {
		return 0, errGone
	}
	n := s.opcode.HeaderLen()
	if len(dst) < n+int(s.length)+int(s.pad) {
		return 0, errGone
	}
	q.rsp.answered(s)
	if q.fn.Trace != nil {
		q.noteResponse(trace.Scheduled, s)
	}
	length, pad := int(s.length), int(s.pad)
	if length > 0 && s.syndrome == synNone {
		if err := s.mr.Read(s.va, dst[n:n+length]); err != nil {
			s.syndrome = synOperation
		}
	}
	if s.syndrome != synNone {
		length, pad = 0, 0
	}
	h := &q.fn.e.headers
	*h = wire.Headers{
		RBTH: wire.RBTH{
			Opcode: s.opcode | q.service, DestQP: q.peer, SN: s.sn, Pad: uint8(pad),
			CE: s.syndrome != synNone, Syndrome: uint8(s.syndrome),
		},
		AtomicAck: wire.AtomicAckETH{Original: s.original},
		STETH:     s.sink,
	}
	h.Append(dst[:0])
	clear(dst[n+length : n+length+pad])
	return n + length + pad, nil
}

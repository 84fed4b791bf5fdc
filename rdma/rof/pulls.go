package rof

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// READs and atomics of the peer are pulls: Falcon acknowledges the request before it is delivered
// (Falcon §8.5.3.5), so an error is answered with a complete-in-error response. An atomic runs
// once, when it arrives. The data of a READ is read each time Falcon sends the response.

const (
	maxServed = 128 // unanswered pull requests of the peer on a connection

	// pullRetry is the delay of a pull that cannot be served now, because there was no free slot or
	// it arrived too early.
	pullRetry falcon.Time = 80e3
)

// served is a pull request of the peer, from its arrival to the acknowledgement of the response. It
// holds what each transmission of the response is made from.
type served struct {
	busy     bool
	sent     bool              // the response was sent at least once
	opcode   ib.Opcode         // of the response
	refusal  transport.Refusal // complete in error
	sn       uint32
	rsn      uint32 // of the transaction
	sink     ib.STETH
	memory   transport.Memory // READ
	va       uint64
	length   uint32
	pad      uint8  // pad bytes behind the data
	original uint64 // atomic
}

// pulls is the fixed set of pull requests that a connection serves at a time, allocated when the
// first one arrives. The tag of a response consists of slot and epoch.
type pulls struct {
	slots  []served
	free   []uint16
	epoch  uint32
	unsent int // requests whose response was never sent, so the peer cannot have it
}

// allocate makes the slots, once.
func (p *pulls) allocate() {
	if p.slots == nil {
		p.slots = make([]served, maxServed)
		p.free = make([]uint16, 0, maxServed)
		p.drop()
	}
}

// drop drops all requests. Falcon gets no more data for their responses.
func (p *pulls) drop() {
	p.epoch++
	p.unsent = 0
	p.free = p.free[:0]
	for i := range p.slots {
		p.slots[i] = served{}
		p.free = append(p.free, uint16(len(p.slots)-1-i))
	}
}

// next returns the slot that take will use, cleared. A slot must be free.
func (p *pulls) next() *served {
	s := &p.slots[p.free[len(p.free)-1]]
	*s = served{}
	return s
}

// take keeps the request in the slot of next, and returns the tag of its response.
func (p *pulls) take() (tag uint64) {
	slot := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.slots[slot].busy = true
	p.unsent++
	return uint64(p.epoch)<<32 | uint64(slot)
}

// tagged returns the request of a tag, nil if it was dropped.
func (p *pulls) tagged(tag uint64) *served {
	i := uint32(tag)
	if uint32(tag>>32) != p.epoch || i >= uint32(len(p.slots)) || !p.slots[i].busy {
		return nil
	}
	return &p.slots[i]
}

// sending records that the response to s is sent, for the first time or again.
func (p *pulls) sending(s *served) {
	if !s.sent {
		s.sent = true
		p.unsent--
	}
}

// done frees the slot of s, which is finished.
func (p *pulls) done(tag uint64, s *served) {
	p.sending(s)
	*s = served{}
	p.free = append(p.free, uint16(tag))
}

// handlePull handles a READ or atomic request.
func (t *target) handlePull(now falcon.Time, ev *falcon.Event) {
	h := &t.end.e.headers
	_, err := h.Parse(ev.Data)
	if err == nil && h.RBTH.DestQP != t.end.terms.QPN {
		t.refuseStranger(now, ev)
		return
	}
	if at := t.end.user.AnswerAt(now); at > now { // the response counts towards the rate, so the request waits
		t.end.account.RateWaits++
		t.deferPull(now, ev, at)
		return
	}
	t.pulls.allocate()
	if len(t.pulls.free) == 0 {
		t.deferPull(now, ev, now+pullRetry)
		return
	}
	s := t.pulls.next()
	s.opcode, s.sn, s.rsn, s.sink = ib.ReadRespOnly, h.RBTH.SN, ev.RSN, h.STETH
	a := &t.end.e.arrival
	*a = arrival{present: true, class: classPull, Packet: transport.Packet{First: true, Last: true, Message: h.SETH.RMSN}}
	v := t.examine(h, err, s, a, ev.Length)
	if v == later {
		t.deferPull(now, ev, now+pullRetry)
		return
	}
	length := wire.Opcodes[s.opcode].Len + int(s.length) + int(s.pad)
	tag := t.pulls.take()
	if t.end.notes.On() {
		t.end.notes.Delivered(ev.RSN, uint8(h.RBTH.Opcode), s.length, trace.Answering)
	}
	if err := t.end.pipe.RespondPull(now, ev.RSN, tag, length); err != nil {
		t.pulls.done(tag, s) // the connection is closing, or falcon gave the request up
	}
	switch v {
	case carriedOut:
		t.end.account.PullsRx++
		t.end.user.Answered(int(s.length))
		t.arrived(now, h.RBTH.SN, a)
		return
	case failedAlone:
		t.end.account.Refused++
		t.arrived(now, h.RBTH.SN, a)
	case failed:
		t.end.account.Refused++
		t.end.user.Refused(now, s.refusal)
	case notServing:
		t.end.account.Refused++
	}
}

// deferPull makes falcon deliver the request again later. The peer gets no answer: the shortage is
// not one of the receiver, and the peer's RNR retries do not count it.
func (t *target) deferPull(now falcon.Time, ev *falcon.Event, until falcon.Time) {
	t.end.account.PullsDeferred++
	t.end.pipe.DeferPull(now, ev.RSN, until)
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
	if op.Atomic() {
		s.opcode = ib.AtomicResponse
	}
	t.end.user.Heard()
	if !t.end.user.Serving() {
		s.refusal = transport.NotServing
		return notServing
	}
	if !addressed || op.Info().Kind != ib.KindPull {
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
	case !t.end.ordered && !t.end.terms.Unordered && op.Atomic() && h.RBTH.SN != t.expected:
		return later // RFC 7306 §5.2.1: atomics in the order sent
	case t.end.ordered && !t.legal(a), t.pulls.unsent >= t.end.terms.Serves: // RDMA over Falcon §8.3.2: RMSN counts packets
		s.refusal = transport.Invalid
		return failed
	}
	switch s.refusal = t.serve(h, s, asked); {
	case s.refusal == transport.Accepted:
		return carriedOut
	case t.end.terms.InError:
		return failedAlone
	}
	return failed
}

// serve carries out an atomic at once, and checks a READ as far as possible before its response is
// sent.
func (t *target) serve(h *wire.Headers, s *served, asked int) (r transport.Refusal) {
	if s.opcode == ib.AtomicResponse {
		if asked != wire.PullLength(h.RBTH.Opcode, 8) {
			return transport.Invalid
		}
		x := &t.end.e.atomic
		*x = transport.Atomic{
			Op: h.RBTH.Opcode.Info().Verb, Addr: h.Atomic.VA, RKey: h.Atomic.RKey, Compare: h.Atomic.Compare, SwapAdd: h.Atomic.SwapAdd,
			Masks: abi.AtomicMasks(h.Mask),
		}
		s.original, r = t.end.user.Atomic(x)
		return r
	}
	n := h.RETH.Length
	if n > uint32(t.end.segment) {
		return transport.Invalid
	}
	pad := uint8(ib.PadLen(int(n)))
	switch padded := wire.PullLength(ib.ReadRequest, int(n)); asked {
	case padded:
	case padded - int(pad): // the peer does not count the pad, so it gets none
		pad = 0
	default:
		return transport.Invalid
	}
	if s.memory, r = t.end.user.Read(h.RETH.RKey, h.RETH.VA, n); r == transport.Accepted {
		s.va, s.length, s.pad = h.RETH.VA, n, pad
	}
	return r
}

// fillResponse writes one pull response packet. If the memory of a READ is gone, it writes a
// complete-in-error response.
func (t *target) fillResponse(tag uint64, dst []byte) (int, error) {
	s := t.pulls.tagged(tag)
	if s == nil {
		return 0, errGone
	}
	n := wire.Opcodes[s.opcode].Len
	if len(dst) < n+int(s.length)+int(s.pad) {
		return 0, errGone
	}
	t.pulls.sending(s)
	if t.end.notes.On() {
		t.end.notes.Response(trace.Scheduled, s.rsn, s.sn)
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
	h := &t.end.e.headers
	*h = wire.Headers{}
	h.RBTH.Opcode, h.RBTH.DestQP, h.RBTH.SN, h.RBTH.Pad = s.opcode|t.end.service, t.end.terms.Peer, s.sn, uint8(pad)
	h.RBTH.CE, h.RBTH.Syndrome = s.refusal != transport.Accepted, uint8(syndromeOf(s.refusal))
	h.AtomicAck.Original, h.STETH = s.original, s.sink
	h.Append(dst[:0])
	clear(dst[n+length : n+length+pad])
	return n + length + pad, nil
}

// responseDone handles the completion of a pull response.
func (t *target) responseDone(tag uint64) {
	s := t.pulls.tagged(tag)
	if s == nil {
		return
	}
	if t.end.notes.On() {
		t.end.notes.Response(trace.Acked, s.rsn, s.sn)
	}
	t.pulls.done(tag, s)
}

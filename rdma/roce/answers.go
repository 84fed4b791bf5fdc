package roce

import (
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// answer is the response to a READ, or to an atomic.
type answer struct {
	request  wire.PSN // that it answers
	psn      wire.PSN // of the next packet
	left     int      // packets
	begun    bool
	again    bool // was due before
	atomic   bool
	original uint64
	aeth     ib.AETH
	memory   transport.Memory
	addr     uint64
	length   uint32         // that is left
	at       transport.Time // not before
}

// result is the answer to an atomic: the word as it was.
type result struct {
	psn      wire.PSN
	original uint64
	aeth     ib.AETH
}

// takeRead takes a READ that is next: it takes as many PSNs as its response has packets.
func (s *responder) takeRead(now transport.Time, h *wire.Headers) {
	n := h.RETH.Length
	if n > maxMessage || s.unanswered() >= s.end.terms.Serves {
		s.refuse(now, transport.Invalid, true)
		return
	}
	memory, r := s.end.user.Read(h.RETH.RKey, h.RETH.VA, n)
	if r != transport.Accepted {
		s.refuse(now, r, true)
		return
	}
	packets := s.packets(n)
	s.end.account.PullsRx += uint64(packets)
	psn := s.expected
	if s.end.notes.On() {
		s.end.notes.Delivered(uint32(psn), uint8(h.BTH.Opcode), n, trace.Answering)
	}
	s.took(packets, true)
	s.read(now, h, answer{request: psn, left: packets, memory: memory})
}

// packets is how many the response to a READ of n bytes has.
func (s *responder) packets(n uint32) int { return max(1, (int(n)+s.end.segment-1)/s.end.segment) }

// unanswered is how many READs and atomics wait for their first answer. One that is repeated does
// not count: the peer may have got the answer before since it asked again, and may have new ones
// then.
func (s *responder) unanswered() (n int) {
	for i := range s.answers.Len() {
		if !s.answers.At(i).again {
			n++
		}
	}
	return n
}

// read makes the response to a READ due, as soon as the function's rate allows it.
func (s *responder) read(now transport.Time, h *wire.Headers, a answer) {
	at := s.end.user.AnswerAt(now)
	if at > now {
		s.end.account.RateWaits++
		s.end.account.PullsDeferred++
	}
	s.end.user.Answered(int(h.RETH.Length))
	a.psn, a.aeth, a.addr, a.length, a.at = a.request, ib.AETH{Syndrome: s.acks(), MSN: s.msn}, h.RETH.VA, h.RETH.Length, at
	s.insert(a)
	s.end.wake()
}

// takeAtomic carries out an atomic that is next.
func (s *responder) takeAtomic(now transport.Time, op ib.Opcode, h *wire.Headers) {
	if s.unanswered() >= s.end.terms.Serves {
		s.refuse(now, transport.Invalid, true)
		return
	}
	x := &s.end.e.atomic
	*x = transport.Atomic{
		Op: op.Info().Verb, Addr: h.Atomic.VA, RKey: h.Atomic.RKey, Compare: h.Atomic.Compare, SwapAdd: h.Atomic.SwapAdd,
		Masks: abi.AtomicMasks(h.Mask),
	}
	original, refusal := s.end.user.Atomic(x)
	if refusal != transport.Accepted {
		s.refuse(now, refusal, true)
		return
	}
	s.end.account.PullsRx++
	psn := s.expected
	if s.end.notes.On() {
		s.end.notes.Delivered(uint32(psn), uint8(h.BTH.Opcode), 8, trace.Answering)
	}
	s.took(1, true)
	r := result{psn: psn, original: original, aeth: ib.AETH{Syndrome: s.acks(), MSN: s.msn}}
	s.keep(r)
	s.answerAtomic(&r, false)
}

// repeatAtomic makes the answer to an atomic due again, if its result is kept.
func (s *responder) repeatAtomic(psn wire.PSN) {
	if r := s.result(psn); r != nil {
		s.answerAtomic(r, true)
	}
}

// answerAtomic makes the answer to an atomic due.
func (s *responder) answerAtomic(r *result, again bool) {
	s.insert(answer{request: r.psn, psn: r.psn, left: 1, atomic: true, again: again, original: r.original, aeth: r.aeth})
	s.end.wake()
}

// readAgain carries out a READ again.
func (s *responder) readAgain(now transport.Time, h *wire.Headers) {
	n := h.RETH.Length
	packets := s.packets(n)
	if n > maxMessage || h.BTH.PSN.Add(packets).Sub(s.expected) > 0 || s.answers.Len() >= 2*s.end.terms.Serves {
		return
	}
	if memory, r := s.end.user.Read(h.RETH.RKey, h.RETH.VA, n); r == transport.Accepted {
		s.read(now, h, answer{request: h.BTH.PSN, left: packets, memory: memory, again: true})
	}
}

// result finds what the atomic with a PSN found, if it is kept. PSNs come again after 2^24 packets:
// the newest result is the one that a peer may ask for.
func (s *responder) result(psn wire.PSN) *result {
	for i := range min(s.ran, maxAtomics) {
		if r := &s.atomics[(s.ran-1-i)%maxAtomics]; r.psn == psn {
			return r
		}
	}
	return nil
}

// keep keeps the result of an atomic.
func (s *responder) keep(r result) {
	if s.atomics == nil {
		s.atomics = make([]result, maxAtomics)
	}
	s.atomics[s.ran%maxAtomics] = r
	s.ran++
}

// dropAnswers forgets the answers to READs and atomics.
func (s *responder) dropAnswers() {
	for s.answers.Len() > 0 {
		s.answers.Pop().memory = nil
	}
}

// insert puts an answer in its place. One that is due already is not due twice, but begins anew
// where the peer asks it to.
func (s *responder) insert(a answer) {
	for i := range s.answers.Len() {
		x := s.answers.At(i)
		if d := a.psn.Sub(x.psn); d < x.left && a.psn.Add(a.left).Sub(x.psn) > 0 {
			if i == 0 {
				a.again = a.again && x.again
				*x = a
			}
			return
		}
	}
	*s.answers.Push() = a
	for i := s.answers.Len() - 1; i > 0 && s.answers.At(i-1).psn.Sub(a.psn) > 0; i-- {
		*s.answers.At(i), *s.answers.At(i - 1) = *s.answers.At(i - 1), *s.answers.At(i)
	}
}

// sendReply sends an acknowledgement that is due, behind the answers to what came before.
func (s *responder) sendReply(b []byte) int {
	r := &s.reply
	if !r.due || s.answers.Len() > 0 && r.psn.Sub(s.answers.At(0).psn) >= 0 {
		return 0
	}
	r.due = false
	if r.aeth.Syndrome.Acks() && s.end.notes.On() {
		s.noteAck(r.psn.Add(1))
	}
	h := s.end.begin(ib.Acknowledge, r.psn)
	h.AETH = r.aeth
	return s.end.finish(h, b, 0)
}

// sendAnswer sends the next packet of the answer that is first.
func (s *responder) sendAnswer(now transport.Time, b []byte) int {
	if s.answers.Len() == 0 || s.spoiled {
		return 0
	}
	a := s.answers.At(0)
	if a.at > now {
		s.end.arm(&s.again, kindAnswer, a.at)
		return 0
	}
	n := 0
	if !a.atomic {
		n = min(int(a.length), s.end.segment)
	}
	h := s.end.begin(a.opcode(), a.psn)
	h.AETH, h.AtomicAck.Original = a.aeth, a.original
	if at := s.end.dataAt(h); n > 0 && a.memory.Read(a.addr, b[at:at+n]) != nil {
		s.spoiled = true
		s.end.e.failing.PushBack(&s.end.failing, s.end.conn)
		return 0
	}
	a.begun = true
	if s.end.notes.On() {
		s.noteResponse(a)
	}
	a.psn, a.left, a.addr, a.length = a.psn.Add(1), a.left-1, a.addr+uint64(n), a.length-uint32(n)
	if a.left == 0 {
		s.answers.Pop().memory = nil
	}
	return s.end.finish(h, b, n)
}

func (a *answer) opcode() ib.Opcode {
	switch {
	case a.atomic:
		return ib.AtomicResponse
	case !a.begun && a.left == 1:
		return ib.ReadRespOnly
	case !a.begun:
		return ib.ReadRespFirst
	case a.left == 1:
		return ib.ReadRespLast
	}
	return ib.ReadRespMiddle
}

// refuseUnreadable refuses the request whose memory is gone. The answers behind it go too.
func (s *responder) refuseUnreadable(now transport.Time) {
	psn := s.answers.At(0).psn
	s.dropAnswers()
	s.end.account.Refused++
	s.end.port.stats.Refused++
	s.refused, s.spoiled = ib.SynOperation, false
	s.answer(psn, ib.SynOperation)
	s.end.user.Refused(now, transport.Operation)
}

// noteAck records that everything before psn is acknowledged. The event follows when the current
// packet is sealed.
func (s *responder) noteAck(psn wire.PSN) {
	s.end.port.behind = trace.Event{Kind: trace.Answered, Conn: s.end.terms.QPN, Index: serial(psn), Extra: serial(psn), Flags: trace.Responder}
}

// noteResponse records that the next packet of an answer is sent. No more follow the last.
func (s *responder) noteResponse(a *answer) {
	request := uint32(a.request)
	s.end.notes.Response(trace.Scheduled, request, serial(a.psn))
	if a.left == 1 {
		s.end.port.behind = trace.Event{Kind: trace.Gone, Conn: s.end.terms.QPN, Index: request, Extra: serial(a.psn), Flags: trace.Responder}
	}
}

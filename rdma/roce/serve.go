package roce

import (
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// takeRead takes a READ that is next: it takes as many PSNs as its response has packets.
func (s *responder) takeRead(now transport.Time, h *wire.Headers) {
	n := h.RETH.Length
	if n > maxMessage || s.unanswered() >= s.terms.Serves {
		s.refuse(now, transport.Invalid, true)
		return
	}
	memory, r := s.user.Read(h.RETH.RKey, h.RETH.VA, n)
	if r != transport.Accepted {
		s.refuse(now, r, true)
		return
	}
	packets := s.packets(n)
	s.account.PullsRx += uint64(packets)
	psn := s.expected
	if s.account.Trace != nil {
		s.noteDelivered(h.BTH.Opcode, psn, int(n), trace.Answering)
	}
	s.took(packets, true)
	s.read(now, h, answer{request: psn, left: packets, memory: memory})
}

// packets is how many the response to a READ of n bytes has.
func (s *responder) packets(n uint32) int { return max(1, (int(n)+s.segment-1)/s.segment) }

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

// read makes the response to a READ due, as the function's rate has it.
func (s *responder) read(now transport.Time, h *wire.Headers, a answer) {
	at := s.user.AnswerAt(now)
	if at > now {
		s.account.RateWaits++
		s.account.PullsDeferred++
	}
	s.user.Answered(int(h.RETH.Length))
	a.psn, a.aeth, a.addr, a.length, a.at = a.request, wire.AETH{Syndrome: s.acks(), MSN: s.msn}, h.RETH.VA, h.RETH.Length, at
	s.insert(a)
	s.wake()
}

// takeAtomic carries out an atomic that is next.
func (s *responder) takeAtomic(now transport.Time, op wire.Opcode, h *wire.Headers) {
	if s.unanswered() >= s.terms.Serves {
		s.refuse(now, transport.Invalid, true)
		return
	}
	x := &s.e.atomic
	*x = transport.Atomic{
		Op: abi.OpMaskedFetchAdd, Addr: h.Atomic.VA, RKey: h.Atomic.RKey, Compare: h.Atomic.Compare, SwapAdd: h.Atomic.SwapAdd,
		Masks: abi.AtomicMasks(h.Mask),
	}
	switch op {
	case wire.CmpSwap:
		x.Op = abi.OpCmpSwap
	case wire.FetchAdd:
		x.Op = abi.OpFetchAdd
	case wire.MaskedCmpSwap:
		x.Op = abi.OpMaskedCmpSwap
	}
	original, refusal := s.user.Atomic(x)
	if refusal != transport.Accepted {
		s.refuse(now, refusal, true)
		return
	}
	s.account.PullsRx++
	psn := s.expected
	if s.account.Trace != nil {
		s.noteDelivered(h.BTH.Opcode, psn, 8, trace.Answering)
	}
	s.took(1, true)
	r := result{psn: psn, original: original, aeth: wire.AETH{Syndrome: s.acks(), MSN: s.msn}}
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
	s.wake()
}

// readAgain carries out a READ again.
func (s *responder) readAgain(now transport.Time, h *wire.Headers) {
	n := h.RETH.Length
	packets := s.packets(n)
	if n > maxMessage || h.BTH.PSN.Add(packets).Sub(s.expected) > 0 || s.answers.Len() >= 2*s.terms.Serves {
		return
	}
	if memory, r := s.user.Read(h.RETH.RKey, h.RETH.VA, n); r == transport.Accepted {
		s.read(now, h, answer{request: h.BTH.PSN, left: packets, memory: memory, again: true})
	}
}

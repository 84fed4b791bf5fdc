package roce

import (
	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// maxAtomics is how many results of atomics are kept for a peer that did not get them; at least as
// many as it may have under way.
const maxAtomics = 128

// responder is the half of a connection that serves the requests of the peer.
type responder struct {
	*end

	expected wire.PSN // of the next packet
	msn      uint32   // messages complete, 24 bits
	message  uint32   // number of the next that takes a receive, from 1
	missed   bool     // the peer was told what is missing, or to come again: until that comes
	part     message
	refused  wire.Syndrome // of a request that the connection did not survive; 0: none

	answers ring.Queue[answer] // to READs and atomics, in the order of their PSNs
	spoiled bool               // the memory of the first of them is gone
	atomics []result           // ring, made when there is one
	ran     int                // atomics
	again   timer.Handle       // the front of answers may be sent then
	reply   reply
	marks   marks
}

// answer is the response to a READ, or to an atomic.
type answer struct {
	request  wire.PSN // that it answers
	psn      wire.PSN // of the next packet
	left     int      // packets
	begun    bool
	again    bool // was due before
	atomic   bool
	original uint64
	aeth     wire.AETH
	memory   transport.Memory
	addr     uint64
	length   uint32         // that is left
	at       transport.Time // not before
}

// result is what an atomic found.
type result struct {
	psn      wire.PSN
	original uint64
	aeth     wire.AETH
}

// reply is an acknowledgement that is due.
type reply struct {
	due  bool
	psn  wire.PSN
	aeth wire.AETH
}

// acknowledge makes an acknowledgement due. One that refuses is not replaced by one that is about
// what came before.
func (s *responder) acknowledge(psn wire.PSN, syndrome wire.Syndrome) {
	if s.reply.due && !s.reply.aeth.Syndrome.Acks() && syndrome.Acks() && psn.Sub(s.reply.psn) < 0 {
		return
	}
	s.reply = reply{due: true, psn: psn, aeth: wire.AETH{Syndrome: syndrome, MSN: s.msn}}
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

// answer makes an acknowledgement due.
func (s *responder) answer(psn wire.PSN, syndrome wire.Syndrome) {
	s.acknowledge(psn, syndrome)
	s.wake()
}

// operation is the opcode without its service; ok is false if the packet names a shared receive
// queue that is not to be reached this way.
func (s *responder) operation(h *wire.Headers) (op wire.Opcode, ok bool) {
	op = h.BTH.Opcode &^ wire.ServiceMask
	if h.BTH.Opcode&wire.Vendor == wire.Vendor {
		op |= wire.Vendor
	}
	return op, !s.terms.XRC || s.user.Address(h.XRC.SRQ)
}

// took moves on by n PSNs.
func (s *responder) took(n int, last bool) {
	s.expected, s.missed = s.expected.Add(n), false
	if last {
		s.msn = (s.msn + 1) & wire.PSNMask
	}
}

// packet is what a packet with n data bytes says.
func (s *responder) packet(op wire.Opcode, info *wire.Info, h *wire.Headers, n int) *transport.Packet {
	p := &s.e.packet
	*p = transport.Packet{
		Op: abi.OpWrite, First: info.First, Last: info.Last, Solicited: h.BTH.Solicited, ID: uint32(h.BTH.PSN), Message: s.message,
		Length: uint32(n), Claimed: uint32(n), Imm: h.Imm.Data,
	}
	switch op {
	case wire.SendFirst, wire.SendMiddle, wire.SendLast, wire.SendOnly:
		p.Op = abi.OpSend
	case wire.SendLastImm, wire.SendOnlyImm:
		p.Op = abi.OpSendImm
	case wire.SendLastInv, wire.SendOnlyInv:
		p.Op, p.Imm = abi.OpSendInv, h.Inv.RKey
	case wire.WriteLastImm, wire.WriteOnlyImm:
		p.Op = abi.OpWriteImm
	}
	return p
}

// refuse answers with a NAK, which neither side survives. Where tell is set the queue pair does not
// know yet.
func (s *responder) refuse(now transport.Time, r transport.Refusal, tell bool) {
	s.account.Refused++
	s.port.stats.Refused++
	if r != transport.NotServing {
		s.refused = syndromeOf(r)
		s.answer(s.expected, s.refused)
	}
	if tell {
		s.user.Refused(now, r)
	}
}

// syndromeOf is how a refusal travels.
func syndromeOf(r transport.Refusal) wire.Syndrome {
	switch r {
	case transport.Access:
		return wire.SynAccess
	case transport.Operation:
		return wire.SynOperation
	}
	return wire.SynInvalid
}

package roce

import (
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// sendReply sends an acknowledgement that is due, behind the answers to what came before.
func (s *responder) sendReply(b []byte) int {
	r := &s.reply
	if !r.due || s.answers.Len() > 0 && r.psn.Sub(s.answers.At(0).psn) >= 0 {
		return 0
	}
	r.due = false
	if s.account.Trace != nil && r.aeth.Syndrome.Acks() {
		s.noteAck(r.psn.Add(1))
	}
	h := s.begin(wire.Acknowledge, r.psn)
	h.AETH = r.aeth
	return s.finish(h, b, 0)
}

// sendAnswer sends the next packet of the answer that is first.
func (s *responder) sendAnswer(now transport.Time, b []byte) int {
	if s.answers.Len() == 0 || s.spoiled {
		return 0
	}
	a := s.answers.At(0)
	if a.at > now {
		s.arm(&s.again, kindAnswer, a.at)
		return 0
	}
	op, n := a.opcode(), 0
	if !a.atomic {
		n = min(int(a.length), s.segment)
	}
	h := s.begin(op, a.psn)
	h.AETH, h.AtomicAck.Original = a.aeth, a.original
	if at := s.dataAt(op); n > 0 && a.memory.Read(a.addr, b[at:at+n]) != nil {
		s.spoiled = true
		s.e.failing.PushBack(&s.failing, s.conn)
		return 0
	}
	a.begun = true
	if s.account.Trace != nil {
		s.noteResponse(a.request, a.psn, a.left == 1)
	}
	a.psn, a.left, a.addr, a.length = a.psn.Add(1), a.left-1, a.addr+uint64(n), a.length-uint32(n)
	if a.left == 0 {
		s.answers.Pop().memory = nil
	}
	return s.finish(h, b, n)
}

func (a *answer) opcode() wire.Opcode {
	switch {
	case a.atomic:
		return wire.AtomicResponse
	case !a.begun && a.left == 1:
		return wire.ReadRespOnly
	case !a.begun:
		return wire.ReadRespFirst
	case a.left == 1:
		return wire.ReadRespLast
	}
	return wire.ReadRespMiddle
}

// refuseUnreadable refuses the request whose memory is gone. The answers behind it go too.
func (s *responder) refuseUnreadable(now transport.Time) {
	psn := s.answers.At(0).psn
	s.dropAnswers()
	s.account.Refused++
	s.port.stats.Refused++
	s.refused, s.spoiled = wire.SynOperation, false
	s.answer(psn, wire.SynOperation)
	s.user.Refused(now, transport.Operation)
}

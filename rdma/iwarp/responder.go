package iwarp

import (
	"encoding/binary"
	"errors"

	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/iwarp/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// responder is the half of a connection that serves the peer's requests. They are carried out as they
// come: TCP has them in order. READs are answered later, their memory is read when the answer is sent;
// atomics have their result then. Answers go in the order of the requests (RFC 7306 §5.2.2(8), §7).
type responder struct {
	c *Conn

	queues   [4]uint32 // MSN of the last message that came, of each queue
	messages uint32    // that took a receive
	segments uint32    // FPDUs that came
	replied  uint32    // FPDUs of answers that were sent, for traces

	sending message // SEND that has come in part
	writing message // WRITE that has come in part
	written uint64  // bytes of the WRITE that came last, if nothing came behind it

	answers  ring.Queue[answer]
	half     bool   // an answer is sent in part
	atomics  uint32 // MSN of the last Atomic Response
	spoiled  bool   // the memory of the first answer is gone
	timer    timer.Handle
	header   wire.Header
	response wire.AtomicResponse
}

// message is a message of several segments of which some have come.
type message struct {
	open  bool
	op    wire.Opcode
	bytes uint64
}

// answer is the answer to a READ or atomic.
type answer struct {
	segment  uint32         // of the request
	at       transport.Time // not before
	memory   transport.Memory
	request  wire.ReadRequest
	sent     uint32 // bytes
	msn      uint32 // of the request
	atomic   bool
	id       uint32
	original uint64
}

// midway reports whether an answer has been sent in part.
func (s *responder) midway() bool { return s.half }

// drop forgets the answers.
func (s *responder) drop() {
	for s.answers.Len() > 0 {
		s.answers.Pop().memory = nil
	}
	s.c.e.timers.Stop(&s.timer)
}

// causeIn returns the cause that an error of package wire is.
func causeIn(err error) wire.Cause {
	var cause wire.Cause
	if !errors.As(err, &cause) {
		return wire.LengthMismatch
	}
	return cause
}

// takeSegment takes a segment of the peer. What is wrong with it ends the stream (RFC 5041 §7.1,
// RFC 5040 §7.2, RFC 7306 §8.2).
func (c *Conn) takeSegment(now transport.Time, ulpdu []byte) {
	s := &c.responder
	s.segments++
	h, n, err := wire.ParseHeader(ulpdu)
	if err != nil {
		c.refuse(now, causeIn(err), ulpdu, transport.Invalid)
		return
	}
	data := ulpdu[n:]
	switch h.Opcode {
	case wire.OpTerminate:
		c.terminated(now, data)
		return
	case wire.OpReadResponse:
		c.requester.readResponse(now, &h, data, ulpdu)
		return
	case wire.OpAtomicResponse:
		c.requester.atomicResponse(now, &h, data, ulpdu)
		return
	}
	if !c.user.Serving() {
		c.terminate(now, wire.LocalCatastrophic, nil)
		return
	}
	c.user.Heard()
	if c.notes.On() {
		t := c.account.Trace
		t.Arrived(t.Now(), &trace.Event{Conn: c.terms.QPN, Index: s.segments, Extra: s.segments})
	}
	switch h.Opcode {
	case wire.OpWrite:
		s.takeWrite(now, &h, data, ulpdu)
	case wire.OpReadRequest:
		s.takeRead(now, &h, data, ulpdu)
	case wire.OpAtomicRequest:
		s.takeAtomic(now, &h, data, ulpdu)
	case wire.OpImmediate, wire.OpImmediateSE:
		s.takeImmediate(now, &h, data, ulpdu)
	default:
		s.takeSend(now, &h, data, ulpdu)
	}
}

// packet begins the description of a segment for the queue pair.
func (s *responder) packet(op abi.Opcode, h *wire.Header, n int) *transport.Packet {
	p := &s.c.e.packet
	*p = transport.Packet{Op: op, Last: h.Last, ID: s.segments, Message: s.messages + 1, Length: uint32(n), Claimed: uint32(n)}
	return p
}

// place has a packet placed. It reports whether the stream goes on.
func (s *responder) place(now transport.Time, h *wire.Header, p *transport.Packet, data, ulpdu []byte) bool {
	v := s.c.user.Place(now, p, data)
	switch {
	case v.Refusal == transport.NotReady: // the queue pair does not know yet that this is the end
		s.c.refuse(now, causeOf(v.Refusal, h.Opcode), ulpdu, v.Refusal)
		return false
	case v.Refusal != transport.Accepted:
		s.c.account.Refused++
		s.c.terminate(now, causeOf(v.Refusal, h.Opcode), ulpdu)
		return false
	}
	s.c.account.BytesRx += uint64(len(data))
	if s.c.notes.On() {
		s.noteDelivered(h, p)
	}
	return true
}

// noteDelivered records that the data of a segment is in memory. Nobody answers it.
func (s *responder) noteDelivered(h *wire.Header, p *transport.Packet) {
	flags := uint8(0)
	if p.Last && p.TakesReceive() {
		flags = trace.Wanted
	}
	s.c.notes.Delivered(p.ID, uint8(h.Opcode), p.Length, flags)
	s.c.notes.Response(trace.Gone, p.ID, p.ID)
}

// answer keeps the answer to a request of n bytes until it is sent.
func (s *responder) answer(a answer, op wire.Opcode, n uint32) {
	if a.segment = s.segments; s.c.notes.On() {
		s.c.notes.Delivered(a.segment, uint8(op), n, trace.Answering)
	}
	*s.answers.Push() = a
	s.c.wake()
}

// noteAnswered records that an FPDU of an answer goes into the stream.
func (s *responder) noteAnswered(segment uint32, last bool) {
	s.replied++
	if !s.c.notes.On() {
		return
	}
	s.c.notes.Response(trace.Scheduled, segment, s.replied)
	if s.c.account.Trace.SealedPacket(); last {
		s.c.notes.Response(trace.Gone, segment, s.replied)
	}
}

// takeWrite takes a segment of a WRITE.
func (s *responder) takeWrite(now transport.Time, h *wire.Header, data, ulpdu []byte) {
	if h.TO+uint64(len(data)) < h.TO {
		s.c.refuse(now, wire.TaggedTOWraps, ulpdu, transport.OutOfBounds)
		return
	}
	if s.begins(wire.RTRWrite, len(data)) {
		return
	}
	p := s.packet(abi.OpWrite, h, len(data))
	p.First, p.Addr, p.RKey = !s.writing.open, h.TO, h.STag
	if !s.place(now, h, p, data, ulpdu) {
		return
	}
	s.c.account.PushesRx++
	s.writing.open = true
	s.writing.bytes += uint64(len(data))
	if h.Last {
		s.written, s.writing = s.writing.bytes, message{}
	}
}

// due checks that a segment belongs to the next message of its queue, and is the next one of it. It
// returns the cause if not (RFC 5041 §7.1).
func (s *responder) due(h *wire.Header, m *message) (cause wire.Cause, ok bool) {
	switch {
	case h.MSN != s.queues[h.Opcode.Info().Queue]+1:
		return wire.MSNOutOfRange, false
	case m.open && h.Opcode != m.op:
		return wire.UnexpectedOpcode, false
	case uint64(h.MO) != m.bytes:
		return wire.InvalidOffset, false
	}
	return 0, true
}

// single reports whether a segment is a whole message.
func single(h *wire.Header) bool { return h.Last && h.MO == 0 }

// refusalOf returns what the queue pair is told of a segment that is refused with a cause.
func refusalOf(cause wire.Cause) transport.Refusal {
	if cause == wire.MSNOutOfRange {
		return transport.Sequence
	}
	return transport.Invalid
}

// maxMessage is the longest message in bytes.
const maxMessage = 1 << 31

// takeSend takes a segment of a SEND.
func (s *responder) takeSend(now transport.Time, h *wire.Header, data, ulpdu []byte) {
	m := &s.sending
	cause, ok := s.due(h, m)
	if ok && m.bytes+uint64(len(data)) > maxMessage {
		cause, ok = wire.MessageTooLong, false
	}
	if !ok {
		s.c.refuse(now, cause, ulpdu, refusalOf(cause))
		return
	}
	info := h.Opcode.Info()
	p := s.packet(abi.OpSend, h, len(data))
	p.First, p.Offset, p.Solicited = !m.open, h.MO, info.Solicited
	if h.Last && info.Invalidate {
		p.Op, p.Imm = abi.OpSendInv, h.Invalidate
	}
	if !s.place(now, h, p, data, ulpdu) {
		return
	}
	s.c.account.PushesRx++
	s.written = 0
	m.open, m.op = true, h.Opcode
	m.bytes += uint64(len(data))
	if h.Last {
		s.complete(now, p, m.bytes)
		s.sending = message{}
	}
}

// complete ends a message that took a receive.
func (s *responder) complete(now transport.Time, p *transport.Packet, n uint64) {
	s.queues[wire.QueueSend]++
	s.messages++
	s.written = 0
	s.c.user.Complete(now, p, n, abi.WCSuccess)
}

// takeImmediate takes Immediate Data, which verbs know as the end of a WRITE: the one that came just
// before, or one of no bytes. Of the eight bytes verbs have the first four; the others are ignored.
func (s *responder) takeImmediate(now transport.Time, h *wire.Header, data, ulpdu []byte) {
	cause, ok := s.due(h, &s.sending)
	imm, err := wire.ParseImmediate(data)
	switch {
	case ok && s.sending.open:
		cause, ok = wire.UnexpectedOpcode, false
	case ok && err != nil:
		cause, ok = causeIn(err), false
	case ok && !single(h):
		cause, ok = wire.MessageTooLong, false
	}
	if !ok {
		s.c.refuse(now, cause, ulpdu, refusalOf(cause))
		return
	}
	p := s.packet(abi.OpWriteImm, h, 0)
	p.First, p.Solicited = true, h.Opcode.Info().Solicited
	p.Imm = binary.LittleEndian.Uint32(imm[:])
	if s.place(now, h, p, nil, ulpdu) {
		s.complete(now, p, s.written)
	}
}

// admit checks a READ Request or Atomic Request, whose message is one segment: the next one, and not
// more at a time than this end serves (RFC 7306 §5.2.2(4)).
func (s *responder) admit(now transport.Time, h *wire.Header, err error, begins bool, ulpdu []byte) bool {
	cause, ok := s.due(h, &message{})
	switch {
	case ok && err != nil:
		cause, ok = causeIn(err), false
	case ok && !single(h):
		cause, ok = wire.MessageTooLong, false
	case ok && s.answers.Len() >= s.c.terms.Serves && !begins:
		cause, ok = wire.NoBuffer, false
	}
	if !ok {
		s.c.refuse(now, cause, ulpdu, refusalOf(cause))
		return false
	}
	s.queues[wire.QueueRequest]++
	s.written = 0
	if !begins {
		s.c.account.PullsRx++
	}
	return true
}

// begins reports whether a segment that asks for n bytes, or has them, is the message of no bytes
// with which the peer said that it would begin (RFC 6581 §9).
func (s *responder) begins(rtr wire.RTR, n int) bool {
	return s.segments == 1 && s.c.setup.passive && s.c.setup.rtr == rtr && n == 0
}

// takeRead takes a READ Request.
func (s *responder) takeRead(now transport.Time, h *wire.Header, data, ulpdu []byte) {
	r, err := wire.ParseReadRequest(data)
	begins := err == nil && s.begins(wire.RTRRead, int(r.Size))
	if !s.admit(now, h, err, begins, ulpdu) {
		return
	}
	a := answer{request: r, msn: h.MSN, at: now}
	if !begins {
		if r.SourceTO+uint64(r.Size) < r.SourceTO || r.SinkTO+uint64(r.Size) < r.SinkTO {
			s.c.refuse(now, wire.TOWraps, ulpdu, transport.OutOfBounds)
			return
		}
		memory, why := s.c.user.Read(r.SourceSTag, r.SourceTO, r.Size)
		if why != transport.Accepted {
			s.c.refuse(now, causeOf(why, h.Opcode), ulpdu, why)
			return
		}
		a.memory = memory
		if a.at = s.c.user.AnswerAt(now); a.at > now {
			s.c.account.RateWaits++
			s.c.account.PullsDeferred++
		}
		s.c.user.Answered(int(r.Size))
	}
	s.answer(a, h.Opcode, r.Size)
}

// takeAtomic takes an Atomic Request and carries it out.
func (s *responder) takeAtomic(now transport.Time, h *wire.Header, data, ulpdu []byte) {
	r, err := wire.ParseAtomicRequest(data)
	if !s.admit(now, h, err, false, ulpdu) {
		return
	}
	if r.TO&7 != 0 {
		s.c.refuse(now, wire.StreamCatastrophic, ulpdu, transport.Invalid)
		return
	}
	x := &s.c.e.atomic
	*x = transport.Atomic{
		Op: abi.OpMaskedFetchAdd, Addr: r.TO, RKey: r.STag, Compare: r.Compare, SwapAdd: r.AddSwap,
		Masks: abi.AtomicMasks{SwapAdd: r.AddSwapMask, Compare: r.CompareMask},
	}
	const all = ^uint64(0)
	switch {
	case r.Opcode == wire.CmpSwap && r.AddSwapMask == all && r.CompareMask == all:
		x.Op = abi.OpCmpSwap
	case r.Opcode == wire.CmpSwap:
		x.Op = abi.OpMaskedCmpSwap
	case r.AddSwapMask == 0:
		x.Op = abi.OpFetchAdd
	}
	original, why := s.c.user.Atomic(x)
	if why != transport.Accepted {
		s.c.refuse(now, causeOf(why, h.Opcode), ulpdu, why)
		return
	}
	s.answer(answer{atomic: true, id: r.ID, original: original, msn: h.MSN, at: now}, h.Opcode, 8)
}

// send sends the next FPDU of answers.
func (s *responder) send(now transport.Time, b []byte) int {
	if s.answers.Len() == 0 || s.spoiled {
		return 0
	}
	a := s.answers.At(0)
	if a.at > now {
		s.c.e.timers.Arm(&s.timer, s.c, kindAnswer, a.at)
		return 0
	}
	if a.atomic {
		return s.sendAtomic(b, a)
	}
	return s.sendRead(b, a)
}

func (s *responder) sendAtomic(b []byte, a *answer) int {
	s.header = wire.Header{Opcode: wire.OpAtomicResponse, Last: true, MSN: s.atomics + 1}
	data, ok := s.c.compose(b, &s.header, wire.AtomicResponseLen)
	if !ok {
		return 0
	}
	s.response = wire.AtomicResponse{ID: a.id, Original: a.original}
	s.response.Append(data[:0])
	s.atomics++
	s.noteAnswered(a.segment, true)
	s.answers.Pop()
	return s.c.seal(b)
}

func (s *responder) sendRead(b []byte, a *answer) int {
	r := &a.request
	n := min(r.Size-a.sent, uint32(s.c.out.mulpdu-wire.TaggedLen))
	s.header = wire.Header{Opcode: wire.OpReadResponse, Last: a.sent+n == r.Size, STag: r.SinkSTag, TO: r.SinkTO + uint64(a.sent)}
	data, ok := s.c.compose(b, &s.header, int(n))
	if !ok {
		return 0
	}
	if n > 0 && a.memory.Read(r.SourceTO+uint64(a.sent), data) != nil {
		s.spoiled = true
		s.c.e.failing.PushBack(&s.c.failing, s.c)
		return 0
	}
	a.sent += n
	s.half = a.sent < r.Size
	if s.noteAnswered(a.segment, !s.half); !s.half {
		s.answers.Pop().memory = nil
	}
	return s.c.seal(b)
}

// refuseUnreadable refuses the READ whose memory is gone.
func (s *responder) refuseUnreadable(now transport.Time) {
	a := s.answers.At(0)
	s.spoiled = false
	s.header = wire.Header{Opcode: wire.OpReadRequest, Last: true, MSN: a.msn}
	ulpdu := a.request.Append(s.header.Append(s.c.e.ulpdu[:0]))
	s.c.refuse(now, causeOf(transport.Operation, wire.OpReadRequest), ulpdu, transport.Operation)
}

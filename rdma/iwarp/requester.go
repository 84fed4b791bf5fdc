package iwarp

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/iwarp/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// maxPushes is how many packets with data a connection has under way.
const maxPushes = 512

// requester is the half of a connection that sends requests. SENDs and WRITEs are done when TCP has
// their bytes acknowledged, READs and atomics when they are answered, so each have a queue of their
// own. They are sent in the order in which they were issued.
//
//	          front       sent         end
//	pushes  ────┬───────────┬───────────┬──
//	  pulls  ───┴───────────┴───────────┴──
type requester struct {
	c *Conn

	pushes     ring.Queue[push]
	pulls      ring.Queue[pull]
	sentPushes int // of pushes
	sentPulls  int // of pulls
	issued     uint64
	reads      int         // most pulls
	half       bool        // a message is sent in part: nothing may come between
	queues     [4]uint32   // MSN of the last message that was sent, of each queue
	answered   uint32      // MSN of the last Atomic Response
	spoiled    bool        // the data of the next push cannot be read
	header     wire.Header // of the segment that is being made
	read       wire.ReadRequest
	atomic     wire.AtomicRequest
}

// push is a packet of a SEND or WRITE.
type push struct {
	r        *transport.Request
	order    uint64 // among what was issued
	op       wire.Opcode
	last     bool
	written  bool   // its data is in the stream, and its Immediate Data is next
	msn      uint32 // of a SEND, once sent
	offset   uint32 // of its data in the message
	length   uint32
	position uint64 // where in the stream it ends, once sent
}

// pull is a READ or an atomic.
type pull struct {
	r       *transport.Request // nil: the READ with which the connection begins
	order   uint64
	atomic  bool
	growing bool   // parts of it are still to be issued
	msn     uint32 // once sent; also an atomic's identifier
	stag    uint32 // of the sink of a READ
	length  uint32
	got     uint32
	parts   int // packets, as the queue pair issued them, that are not done
	done    uint32
}

// limit sets how many pulls may be under way, as far as both ends agreed.
func (s *requester) limit(reads int) { s.reads = min(reads, s.c.setup.ord) }

// midway reports whether a message has been sent in part.
func (s *requester) midway() bool { return s.half }

// issue implements transport.Conn.Issue. The parts of a READ are one request, which is sent when all
// of them are issued.
func (s *requester) issue(r *transport.Request) (n int, err error) {
	if r.WQE.Opcode == abi.OpSendImm { // RFC 7306 has Immediate Data alone, which takes a receive of its own
		r.Status = abi.WCLocQPOpErr
		return 0, transport.ErrFailed
	}
	n = int(min(r.Length-r.Offset, uint32(s.c.segment)))
	if r.Pulls() {
		err = s.issuePull(r, n)
	} else {
		err = s.issuePush(r, n)
	}
	if err != nil {
		return 0, err
	}
	if !r.Begun && s.c.notes.On() {
		s.c.notes.Request(trace.Issued, r, uint32(s.issued))
	}
	r.Begun = true
	r.Pending++
	r.Offset += uint32(n)
	r.Issued = r.Offset == r.Length
	s.c.wake()
	return n, nil
}

func (s *requester) issuePush(r *transport.Request, n int) error {
	if s.pushes.Len() == maxPushes {
		return transport.ErrWindow
	}
	s.issued++
	*s.pushes.Push() = push{r: r, order: s.issued, op: opcodeOf(r), last: r.Length-r.Offset == uint32(n), offset: r.Offset, length: uint32(n)}
	s.c.account.PushesTx++
	s.c.account.BytesTx += uint64(n)
	return nil
}

func (s *requester) issuePull(r *transport.Request, n int) error {
	p := s.grows(r)
	if p == nil {
		switch {
		case s.reads == 0: // nothing would change that
			r.Status = abi.WCLocQPOpErr
			return transport.ErrFailed
		case s.pulls.Len() >= s.reads:
			return transport.ErrWindow
		}
		s.issued++
		p = s.pulls.Push()
		*p = pull{r: r, order: s.issued, atomic: r.Atomic(), length: r.Length}
		s.c.account.PullsTx++
	}
	p.parts++
	p.growing = r.Offset+uint32(n) != r.Length
	return nil
}

// grows returns the READ whose next part is issued, nil if it is the first one.
func (s *requester) grows(r *transport.Request) *pull {
	if n := s.pulls.Len(); n > 0 && s.pulls.At(n-1).growing {
		return s.pulls.At(n - 1)
	}
	return nil
}

// opcodeOf returns the opcode of a request with data.
func opcodeOf(r *transport.Request) wire.Opcode {
	solicited := r.WQE.Flags&abi.SendSolicited != 0
	switch {
	case r.WQE.Opcode == abi.OpSendInv && solicited:
		return wire.OpSendSEInv
	case r.WQE.Opcode == abi.OpSendInv:
		return wire.OpSendInv
	case r.WQE.Opcode == abi.OpSend && solicited:
		return wire.OpSendSE
	case r.WQE.Opcode == abi.OpSend:
		return wire.OpSend
	}
	return wire.OpWrite
}

// next returns the next message number of a queue.
func (s *requester) next(queue uint32) uint32 {
	s.queues[queue]++
	return s.queues[queue]
}

// send sends the next FPDU of requests.
func (s *requester) send(b []byte) int {
	if s.spoiled {
		return 0
	}
	push, pull := s.sentPushes < s.pushes.Len(), s.sentPulls < s.pulls.Len()
	if push && pull {
		push = s.pushes.At(s.sentPushes).order < s.pulls.At(s.sentPulls).order
	}
	switch {
	case push:
		return s.sendPush(b, s.pushes.At(s.sentPushes))
	case pull:
		return s.sendPull(b, s.pulls.At(s.sentPulls))
	}
	return 0
}

// sendPush sends a packet of a SEND or WRITE. Behind a WRITE with immediate data, also one without
// data, comes an Immediate Data message (RFC 7306 §6): the peer learns from both together how much
// was written.
func (s *requester) sendPush(b []byte, p *push) int {
	if p.written {
		return s.sendImmediate(b, p)
	}
	h := &s.header
	*h = wire.Header{Opcode: p.op, Last: p.last}
	if p.op == wire.OpWrite {
		h.STag, h.TO = p.r.WQE.RKey, p.r.WQE.RemoteAddr+uint64(p.offset)
	} else {
		h.Invalidate, h.MO, h.MSN = p.r.WQE.Imm, p.offset, s.queues[wire.QueueSend]
		if p.offset == 0 {
			h.MSN++
		}
	}
	data, ok := s.c.compose(b, h, int(p.length))
	if !ok {
		return 0
	}
	if len(data) > 0 && s.c.user.Gather(p.r, p.offset, data) != nil {
		s.spoiled = true
		s.c.e.failing.PushBack(&s.c.failing, s.c)
		return 0
	}
	if p.op != wire.OpWrite {
		p.msn, s.queues[wire.QueueSend] = h.MSN, h.MSN
	}
	n := s.c.seal(b)
	s.noteSent(p.r, p.order)
	if s.half = !p.last; p.last && p.r.WQE.Opcode == abi.OpWriteImm {
		p.written, s.half = true, true
		return n
	}
	s.sent(p)
	return n
}

// sent records that a packet is in the stream.
func (s *requester) sent(p *push) {
	p.position = s.c.out.written
	s.sentPushes++
}

// sendImmediate sends the Immediate Data of a WRITE: the four bytes of verbs, as they are in memory,
// and zeros.
func (s *requester) sendImmediate(b []byte, p *push) int {
	h := &s.header
	*h = wire.Header{Opcode: wire.OpImmediate, Last: true, MSN: s.queues[wire.QueueSend] + 1}
	if p.r.WQE.Flags&abi.SendSolicited != 0 {
		h.Opcode = wire.OpImmediateSE
	}
	data, ok := s.c.compose(b, h, wire.ImmediateLen)
	if !ok {
		return 0
	}
	clear(data)
	binary.LittleEndian.PutUint32(data, p.r.WQE.Imm)
	p.msn, s.half = s.next(wire.QueueSend), false
	n := s.c.seal(b)
	s.sent(p)
	return n
}

// sendPull sends a READ Request or an Atomic Request.
func (s *requester) sendPull(b []byte, p *pull) int {
	if p.growing {
		return 0
	}
	h := &s.header
	*h = wire.Header{Opcode: wire.OpReadRequest, Last: true, MSN: s.queues[wire.QueueRequest] + 1}
	length := wire.ReadRequestLen
	if p.atomic {
		h.Opcode, length = wire.OpAtomicRequest, wire.AtomicRequestLen
	}
	data, ok := s.c.compose(b, h, length)
	if !ok {
		return 0
	}
	p.msn = s.next(wire.QueueRequest)
	if p.atomic {
		s.atomic = atomicRequest(p.r, p.msn)
		s.atomic.Append(data[:0])
	} else {
		if p.stag == 0 {
			p.stag = s.c.e.newSTag()
		}
		s.read = wire.ReadRequest{SinkSTag: p.stag, Size: p.length}
		if p.r != nil {
			s.read.SourceSTag, s.read.SourceTO = p.r.WQE.RKey, p.r.WQE.RemoteAddr
		}
		s.read.Append(data[:0])
	}
	s.sentPulls++
	if p.r != nil {
		s.noteSent(p.r, p.order)
	}
	return s.c.seal(b)
}

// noteSent records that an FPDU of a request goes into the stream.
func (s *requester) noteSent(r *transport.Request, order uint64) {
	if s.c.notes.On() {
		s.c.notes.Request(trace.Scheduled, r, uint32(order))
		s.c.account.Trace.SealedPacket()
	}
}

// noteDone records that it was acknowledged or answered, by a success or an error.
func (s *requester) noteDone(r *transport.Request, order uint64, st abi.WCStatus, vendor uint32) {
	if s.c.notes.On() && (st == abi.WCSuccess || vendor != 0) { // otherwise the peer has not spoken
		s.c.notes.Request(trace.Acked, r, uint32(order))
	}
}

// atomicRequest returns the request of an atomic. Those of verbs without masks compare and swap all
// bits, and add as one field.
func atomicRequest(r *transport.Request, id uint32) wire.AtomicRequest {
	x := &r.WQE
	a := wire.AtomicRequest{Opcode: wire.FetchAdd, ID: id, STag: x.RKey, TO: x.RemoteAddr, AddSwap: x.CompareAdd, AddSwapMask: r.Masks.SwapAdd}
	switch x.Opcode {
	case abi.OpFetchAdd:
		a.AddSwapMask = 0
	case abi.OpCmpSwap, abi.OpMaskedCmpSwap:
		a.Opcode, a.AddSwap, a.Compare, a.CompareMask = wire.CmpSwap, x.Swap, x.CompareAdd, r.Masks.Compare
		if x.Opcode == abi.OpCmpSwap {
			a.AddSwapMask, a.CompareMask = ^uint64(0), ^uint64(0)
		}
	}
	return a
}

// sendRTR sends the message of no bytes that lets the peer send (RFC 6581 §9).
func (c *Conn) sendRTR(b []byte) int {
	s := &c.requester
	if c.setup.rtr == wire.RTRWrite {
		n := c.sendEmpty(b)
		c.out.rtrSent = n > 0
		return n
	}
	if s.sentPulls == 0 && (s.pulls.Len() == 0 || s.pulls.At(0).r != nil) {
		*s.pulls.PushFront() = pull{parts: 1}
	}
	n := s.sendPull(b, s.pulls.At(0))
	c.out.rtrSent = n > 0
	return n
}

// sendEmpty sends a WRITE of no bytes.
func (c *Conn) sendEmpty(b []byte) int {
	s := &c.requester
	s.header = wire.Header{Opcode: wire.OpWrite, Last: true}
	if _, ok := c.compose(b, &s.header, 0); !ok {
		return 0
	}
	return c.seal(b)
}

// Acknowledged says how many bytes of the stream, from its first one, the peer's TCP has
// acknowledged. SENDs and WRITEs in them are done.
func (c *Conn) Acknowledged(now transport.Time, total uint64) {
	if c.user == nil || c.forgot {
		return
	}
	s, any := &c.requester, false
	for s.sentPushes > 0 && s.pushes.At(0).position <= total && c.user != nil {
		s.retirePush(now, abi.WCSuccess, 0)
		any = true
	}
	if any {
		c.e.timers.Stop(&c.out.prompt.timer)
		c.out.prompt.wanted, c.out.prompt.sent = false, false
		c.expect(now)
		c.settle(now)
	}
}

// retirePush ends the first push.
func (s *requester) retirePush(now transport.Time, st abi.WCStatus, vendor uint32) {
	p := s.pushes.Pop()
	if s.sentPushes > 0 {
		s.sentPushes--
	}
	r := p.r
	p.r = nil
	r.Pending--
	s.noteDone(r, p.order, st, vendor)
	s.retired()
	s.c.user.Done(now, r, st, vendor)
}

// retirePull ends the first pull.
func (s *requester) retirePull(now transport.Time, st abi.WCStatus, vendor uint32) {
	p := s.pulls.Pop()
	if s.sentPulls > 0 {
		s.sentPulls--
	}
	r, parts := p.r, p.parts
	p.r = nil
	if r == nil { // it made the stream ready; the queue pair's own may wait for its place
		s.retired()
		s.c.user.Unblocked(now)
		return
	}
	s.noteDone(r, p.order, st, vendor)
	s.retired()
	r.Pending -= parts
	s.c.user.Done(now, r, st, vendor)
}

// failUnreadable ends the push whose data could not be read, when everything before it is done, and
// the stream with it. READs before it are given up in the middle of a message, since the peer may
// wait for an answer too.
func (s *requester) failUnreadable(now transport.Time) {
	switch {
	case s.sentPushes > 0, s.sentPulls > 0 && !s.half:
		return // Acknowledged and the answers lead here again
	case s.sentPulls > 0:
		s.c.terminate(now, wire.LocalCatastrophic, nil)
		s.c.closed(now, abi.WCLocProtErr, "memory of a request that is sent in part is gone")
	default:
		s.c.terminate(now, wire.LocalCatastrophic, nil)
		s.retirePush(now, abi.WCLocProtErr, 0)
	}
}

// retired is called when something that was sent is done.
func (s *requester) retired() {
	if s.spoiled {
		s.c.e.failing.PushBack(&s.c.failing, s.c)
	}
}

// drop forgets all requests.
func (s *requester) drop() {
	for s.pushes.Len() > 0 {
		s.pushes.Pop().r = nil
	}
	for s.pulls.Len() > 0 {
		s.pulls.Pop().r = nil
	}
	s.sentPushes, s.sentPulls = 0, 0
}

// first returns the pull that the next answer is for, nil if there is none.
func (s *requester) first() *pull {
	if s.sentPulls == 0 {
		return nil
	}
	return s.pulls.At(0)
}

// readResponse handles a segment of the answer to a READ. READs and atomics are answered in their
// order, and the data of a READ comes in order too. Its STag is of this READ alone, and not one by
// which the peer could reach other memory.
func (s *requester) readResponse(now transport.Time, h *wire.Header, data, ulpdu []byte) {
	p := s.first()
	switch {
	case s.c.forgot:
		return
	case p == nil || p.atomic || h.STag != p.stag:
		s.badResponse(now, wire.TaggedInvalidSTag, ulpdu)
		return
	case h.TO != uint64(p.got) || uint64(len(data)) > uint64(p.length-p.got) || h.Last != (uint32(len(data)) == p.length-p.got):
		s.badResponse(now, wire.TaggedOutOfBounds, ulpdu)
		return
	}
	if len(data) > 0 && s.c.user.Scatter(p.r, p.got, data) != nil {
		s.c.terminate(now, wire.LocalCatastrophic, nil)
		s.retirePull(now, abi.WCLocProtErr, 0)
		return
	}
	s.c.account.BytesRx += uint64(len(data))
	p.got += uint32(len(data))
	for p.parts > 1 && p.got-p.done >= uint32(s.c.segment) {
		p.done += uint32(s.c.segment)
		p.parts--
		p.r.Pending--
		s.c.user.Done(now, p.r, abi.WCSuccess, 0)
		if s.c.user == nil || s.c.forgot {
			return
		}
	}
	if h.Last {
		s.retirePull(now, abi.WCSuccess, 0)
	}
}

// atomicResponse handles the answer to an atomic.
func (s *requester) atomicResponse(now transport.Time, h *wire.Header, data, ulpdu []byte) {
	p := s.first()
	a, err := wire.ParseAtomicResponse(data)
	switch {
	case s.c.forgot:
		return
	case !single(h):
		s.badResponse(now, wire.InvalidOffset, ulpdu)
		return
	case err != nil:
		s.badResponse(now, causeIn(err), ulpdu)
		return
	case p == nil || !p.atomic || h.MSN != s.answered+1:
		s.badResponse(now, wire.MSNOutOfRange, ulpdu)
		return
	case a.ID != p.msn:
		s.badResponse(now, wire.OperationUnspecified, ulpdu)
		return
	}
	s.answered++
	word := s.c.e.word[:]
	binary.LittleEndian.PutUint64(word, a.Original) // the guest's byte order
	if s.c.user.Scatter(p.r, 0, word) != nil {
		s.c.terminate(now, wire.LocalCatastrophic, nil)
		s.retirePull(now, abi.WCLocProtErr, 0)
		return
	}
	s.c.account.BytesRx += uint64(len(word))
	s.retirePull(now, abi.WCSuccess, 0)
}

// badResponse ends the stream because of a wrong answer, which fails the request that waits for one.
func (s *requester) badResponse(now transport.Time, cause wire.Cause, ulpdu []byte) {
	s.c.terminate(now, cause, ulpdu)
	if s.first() != nil && s.first().r != nil {
		s.retirePull(now, abi.WCBadRespErr, uint32(cause))
		return
	}
	s.c.closed(now, abi.WCBadRespErr, cause.Error())
}

// refused ends the request whose header a Terminate has, if it is still under way and not behind a
// READ or atomic that will get no answer any more.
func (s *requester) refused(now transport.Time, h *wire.Header, st abi.WCStatus, vendor uint32) {
	if h.Opcode == wire.OpReadRequest || h.Opcode == wire.OpAtomicRequest {
		if p := s.first(); p != nil && p.msn == h.MSN && p.r != nil {
			order := p.order
			s.carriedOut(now, order)
			if s.c.user != nil && s.first() == p {
				s.retirePull(now, st, vendor)
			}
		}
		return
	}
	for i := range s.sentPushes {
		if p := s.pushes.At(i); p.matches(h) {
			if q := s.first(); q != nil && q.order < p.order {
				return
			}
			s.carriedOut(now, p.order)
			if s.c.user != nil && !s.c.forgot {
				s.retirePush(now, st, vendor)
			}
			return
		}
	}
}

// matches reports whether a segment with that header is the packet's.
func (p *push) matches(h *wire.Header) bool {
	if p.op == wire.OpWrite && h.Opcode == wire.OpWrite {
		return h.STag == p.r.WQE.RKey && h.TO == p.r.WQE.RemoteAddr+uint64(p.offset)
	}
	info := h.Opcode.Info()
	return !info.Tagged && info.Queue == wire.QueueSend && p.msn == h.MSN && (p.op == wire.OpWrite || p.offset == h.MO)
}

// carriedOut ends the pushes that were sent before a request with success: the peer looked at that
// one after them.
func (s *requester) carriedOut(now transport.Time, order uint64) {
	for s.sentPushes > 0 && s.pushes.At(0).order < order && s.c.user != nil && !s.c.forgot {
		s.retirePush(now, abi.WCSuccess, 0)
	}
}

package iwarp

import (
	"encoding/binary"
	"errors"

	"github.com/falcon-vnic/vnic/internal/tape"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/iwarp/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// MPA (RFC 5044, RFC 6581): how a connection begins, and FPDUs on the stream. The bytes are
// wire's.

// Settings is what an end says of itself in its frame. Revision 1 does not say IRD and ORD; Private
// has at most MaxPrivate bytes.
type Settings = transport.StreamSettings

// MaxPrivate is the longest private data of a frame of either revision.
const MaxPrivate = wire.MaxPrivate - wire.EnhancedLen

// setup is how a connection begins.
type setup struct {
	own, peer Settings
	passive   bool   // the peer has asked for the connection
	frame     []byte // of the peer, as far as it has come
	enhanced  bool   // the peer's frame says IRD and ORD
	anyDepth  bool   // but leaves them to programs
	rtr       wire.RTR
	ord       int // agreed: READs and atomics that this end may have under way
}

// rtrs are the first messages that this end can send and take. A SEND, which Linux's drivers do not
// have either, would take a receive.
const rtrs = wire.RTRWrite | wire.RTRRead

// Connect makes the end that has opened a TCP connection with that MSS. Its request is the first
// thing that Transmit has; Established, Rejected or Gone follows.
func (e *Engine) Connect(now transport.Time, mss int, s *Settings) *Conn {
	c := e.open(now, mss, awaitReply, replyTime)
	c.setup.own, c.setup.ord = *s, s.ORD
	f := c.setup.request()
	c.out.frame = f.Append(nil)
	c.wake()
	return c
}

// Answer makes the end that has accepted a TCP connection with that MSS. Requested or Gone follows.
func (e *Engine) Answer(now transport.Time, mss int) *Conn {
	c := e.open(now, mss, awaitRequest, requestTime)
	c.setup.passive, c.out.mute = true, true
	return c
}

func (e *Engine) open(now transport.Time, mss int, s state, patience transport.Time) *Conn {
	c := &Conn{e: e, state: s}
	c.out.mss = mss
	c.requester.c, c.responder.c = c, c
	e.timers.Arm(&c.closing.timer, c, kindPatience, now+patience)
	e.stats.Conns++
	return c
}

// request returns the frame that asks for a connection. With revision 2 the peer may send first, as
// soon as the first FPDU of this end has told it so.
func (s *setup) request() wire.Frame {
	if s.own.Revision == 0 {
		s.own.Revision = wire.Revision2
	}
	return wire.Frame{
		CRC: s.own.CRC, Revision: s.own.Revision, HasEnhanced: true, Private: s.own.Private,
		Enhanced: wire.Enhanced{PeerToPeer: true, RTR: rtrs, IRD: depth(s.own.IRD), ORD: depth(s.own.ORD)},
	}
}

// depth returns an IRD or ORD as frames have it.
func depth(n int) uint16 { return uint16(min(n, wire.AnyDepth-1)) }

// Peer returns what the peer's frame says. Its private data is valid until a queue pair is attached.
func (c *Conn) Peer() *Settings { return &c.setup.peer }

// ORD returns how many READs and atomics both ends agreed that this one may have under way.
func (c *Conn) ORD() int { return c.setup.ord }

// private forgets the private data.
func (s *setup) private() { s.frame, s.peer.Private, s.own.Private = nil, nil, nil }

// take takes the peer's frame from the stream, and returns how much of b belongs to it. done says
// that it is there or wrong.
func (s *setup) take(b []byte, reply bool) (f wire.Frame, n int, done bool, err error) {
	had := len(s.frame)
	s.frame = append(s.frame, b[:min(len(b), wire.MaxFrameLen-had)]...)
	f, length, err := wire.ParseFrame(s.frame, reply)
	if errors.Is(err, wire.ErrIncomplete) {
		return f, len(s.frame) - had, false, nil
	}
	if err != nil {
		return f, len(b), true, err
	}
	s.frame = s.frame[:length]
	s.peer = Settings{Revision: f.Revision, CRC: f.CRC, Private: f.Private}
	if s.enhanced = f.HasEnhanced; s.enhanced {
		s.peer.IRD, s.peer.ORD = int(f.Enhanced.IRD), int(f.Enhanced.ORD)
		s.anyDepth = f.Enhanced.IRD == wire.AnyDepth || f.Enhanced.ORD == wire.AnyDepth
	}
	return f, length - had, true, nil
}

// agree sets what both ends' frames say of FPDUs.
func (c *Conn) agree(f *wire.Frame) {
	c.out.crc = c.setup.own.CRC || f.CRC
	c.out.markers = f.Markers
	c.out.mulpdu = max(wire.MULPDU(c.out.mss, f.Markers), leastMULPDU)
}

// leastMULPDU is the least that an ULPDU may have to be (RFC 5044 §4.5).
const leastMULPDU = 128

// takeRequest takes the peer's request.
func (c *Conn) takeRequest(now transport.Time, b []byte) (n int) {
	f, n, done, err := c.setup.take(b, false)
	switch {
	case !done:
		return n
	case err != nil:
		c.e.stats.Wrong++
		c.vanish(now, err.Error())
		return n
	}
	c.e.timers.Stop(&c.closing.timer)
	c.state = requested
	c.agree(&f)
	if x := &f.Enhanced; f.HasEnhanced && x.PeerToPeer {
		switch c.setup.rtr = x.RTR & rtrs; {
		case c.setup.rtr == 0: // the two ends have no first message in common
			c.Reject(now, nil)
			return n
		case c.setup.rtr&wire.RTRWrite != 0:
			c.setup.rtr = wire.RTRWrite
		}
	}
	c.e.tell(c, Requested)
	return n
}

// reply returns the frame that answers the peer's.
func (c *Conn) reply() wire.Frame {
	s := &c.setup
	f := wire.Frame{Reply: true, CRC: s.own.CRC || s.peer.CRC, Revision: s.peer.Revision, HasEnhanced: s.enhanced, Private: s.own.Private}
	f.Enhanced = wire.Enhanced{PeerToPeer: s.rtr != 0, RTR: s.rtr, IRD: depth(s.own.IRD), ORD: depth(s.ord)}
	if s.anyDepth {
		f.Enhanced.IRD, f.Enhanced.ORD = wire.AnyDepth, wire.AnyDepth
	}
	return f
}

// Accept accepts the peer's request, which then may send. A queue pair is to be attached.
func (c *Conn) Accept(now transport.Time, own *Settings) {
	s := &c.setup
	if c.state != requested {
		return
	}
	s.own, s.ord = *own, own.ORD
	if s.enhanced && !s.anyDepth {
		s.ord = min(s.ord, s.peer.IRD)
	}
	c.state = ready
	if s.rtr == 0 {
		c.e.timers.Arm(&c.closing.timer, c, kindPatience, now+firstTime)
	}
	c.out.crc = c.out.crc || own.CRC
	f := c.reply()
	c.out.frame = f.Append(nil)
	c.wake()
}

// Reject rejects the peer's request.
func (c *Conn) Reject(now transport.Time, private []byte) {
	if c.state != requested {
		return
	}
	c.setup.own = Settings{Private: private}
	f := c.reply()
	f.Reject = true
	c.out.frame = f.Append(nil)
	c.end(now, "this end has rejected the connection")
}

// takeReply takes the peer's reply (RFC 6581 §9). An end that cannot serve as many READs as the peer
// wants to send, or has no first message in common with it, says so by Terminate.
func (c *Conn) takeReply(now transport.Time, b []byte) (n int) {
	s := &c.setup
	f, n, done, err := s.take(b, true)
	switch {
	case !done:
		return n
	case err == nil && f.Revision > s.own.Revision:
		err = wire.InvalidFrame
	}
	switch {
	case err != nil:
		c.e.stats.Wrong++
		c.vanish(now, err.Error())
		return n
	case f.Reject:
		c.e.tell(c, Rejected)
		c.end(now, "the peer has rejected the connection")
		return n
	}
	c.e.timers.Stop(&c.closing.timer)
	c.state = ready
	c.agree(&f)
	x := &f.Enhanced
	if s.enhanced && !s.anyDepth {
		s.ord = min(s.own.ORD, s.peer.IRD)
	}
	if s.enhanced && x.PeerToPeer {
		switch s.rtr = x.RTR & rtrs; {
		case s.rtr&wire.RTRWrite != 0:
			s.rtr = wire.RTRWrite
		case s.rtr == 0:
			c.terminate(now, wire.NoCommonRTR, nil)
			return n
		}
	}
	if s.enhanced && !s.anyDepth && s.peer.ORD > s.own.IRD {
		c.terminate(now, wire.InsufficientIRD, nil)
		return n
	}
	c.e.tell(c, Established)
	return n
}

// input is the receiving half of the stream.
type input struct {
	part []byte // the FPDU that has not come in full, in a buffer of the engine
}

// drop gives the buffer back.
func (i *input) drop(e *Engine) {
	if i.part != nil {
		e.give(i.part)
		i.part = nil
	}
}

// Receive takes the next bytes of the stream, cut anywhere, and returns how many it took: less than
// all only while there is no queue pair yet, and from a peer that sends before it may. The rest is to
// be offered again after Attach. b is not kept.
func (c *Conn) Receive(now transport.Time, b []byte) (n int) {
	all := len(b)
	for len(b) > 0 {
		switch {
		case c.state == awaitRequest:
			n = c.takeRequest(now, b)
		case c.state == awaitReply:
			n = c.takeReply(now, b)
		case c.state == ready && c.user != nil:
			n = c.takeFPDUs(now, b)
		case c.state >= ending:
			n = len(b)
		default:
			return all - len(b)
		}
		b = b[n:]
	}
	c.settle(now)
	return all
}

// takeFPDUs takes FPDUs and the beginning of the next one from the stream (RFC 5044 §5).
func (c *Conn) takeFPDUs(now transport.Time, b []byte) (n int) {
	if len(c.in.part) > 0 {
		if n = c.complete(b); !whole(c.in.part) {
			return n
		}
		c.takeFPDU(now, c.in.part)
		c.in.drop(c.e)
		return n
	}
	for c.state == ready && c.user != nil && whole(b[n:]) {
		n += c.takeFPDU(now, b[n:])
	}
	if c.state == ready && c.user != nil && n < len(b) {
		c.in.part = append(c.e.take(fpduLen(b[n:])), b[n:]...)
	}
	return len(b)
}

// fpduLen returns the length of the FPDU that begins with b, as far as b tells it.
func fpduLen(b []byte) int {
	if len(b) < wire.FPDUHeaderLen {
		return wire.FPDUHeaderLen
	}
	return wire.FPDULen(int(binary.BigEndian.Uint16(b)))
}

// whole reports whether b begins with a whole FPDU.
func whole(b []byte) bool { return len(b) >= wire.FPDUHeaderLen && len(b) >= fpduLen(b) }

// complete adds what b has of the FPDU that has not come in full, and returns how much that is.
func (c *Conn) complete(b []byte) (n int) {
	i := &c.in
	for range 2 { // its length field; the rest
		length := fpduLen(i.part)
		if length > cap(i.part) {
			longer := append(c.e.take(length), i.part...)
			c.e.give(i.part)
			i.part = longer
		}
		more := min(length-len(i.part), len(b)-n)
		i.part = append(i.part, b[n:n+more]...)
		n += more
	}
	return n
}

// takeFPDU takes the whole FPDU at the start of b, and returns its length.
func (c *Conn) takeFPDU(now transport.Time, b []byte) int {
	c.speak()                                                          // it may be the first one
	ulpdu, n, err := wire.ParseFPDU(b, c.out.crc && !c.e.tape.Plays()) // a tape may not have what a checksum covers
	if c.out.crc && !c.e.tape.Bool(tape.Sound, err == nil) {
		c.e.stats.Wrong++
		c.terminate(now, wire.CRCMismatch, nil)
		c.closed(now, abi.WCRetryExcErr, wire.CRCMismatch.Error())
		return len(b)
	}
	c.e.stats.Received++
	c.takeSegment(now, ulpdu)
	return n
}

// firstTime is how long an end that was called waits for the first FPDU. It is to wait until there is one, which
// gives the peer time to get ready (RFC 5044 §7.1.2). But the peer may wait too: Linux's siw never says that it
// begins (RFC 6581 §9), and its program may expect the first message.
const firstTime transport.Time = 1e9

// speak lets an end that was called send.
func (c *Conn) speak() {
	if c.out.mute {
		c.out.mute = false
		c.e.timers.Stop(&c.closing.timer)
		c.wake()
	}
}

// output is the sending half of the stream.
type output struct {
	mss     int
	crc     bool // in both directions
	markers bool // the peer wants them
	mulpdu  int  // the longest ULPDU
	mute    bool // the peer is to send the first FPDU
	rtrSent bool // the message with which the connection begins
	turn    bool // the next message is a request, if there is one
	prompt  prompt

	frame   []byte // request or reply that is to be sent
	ulpdu   int    // length of the ULPDU that is being made
	fpdus   uint64 // bytes of FPDUs written
	written uint64 // bytes written
	room    int    // bytes that the stream takes now
	needs   int    // what did not fit
}

// Room says how many bytes the stream takes now.
func (c *Conn) Room(n int) {
	if c.out.room = n; n >= c.out.needs {
		c.wake()
	}
}

// Written returns how many bytes of the stream Transmit has written.
func (c *Conn) Written() uint64 { return c.out.written }

// fits reports whether n bytes may be written now. If not, Room wakes the connection.
func (o *output) fits(n int) bool {
	o.needs = 0
	if n > o.room {
		o.needs = n
	}
	return n <= o.room
}

// wrote records that n bytes were written.
func (o *output) wrote(n int) int {
	o.room -= n
	o.written += uint64(n)
	return n
}

// compose begins an FPDU in b with a header, and returns where its n data bytes go. ok is false if it
// does not fit into the stream now.
func (c *Conn) compose(b []byte, h *wire.Header, n int) (data []byte, ok bool) {
	o := &c.out
	u := b[wire.FPDUHeaderLen:]
	if o.markers {
		u = c.e.ulpdu[:]
	}
	at := len(h.Append(u[:0]))
	if o.ulpdu = at + n; !o.fits(o.fpduLen()) {
		return nil, false
	}
	return u[at:o.ulpdu], true
}

// fpduLen returns the length of the FPDU that is being made.
func (o *output) fpduLen() int {
	if o.markers {
		return wire.MarkedFPDULen(o.ulpdu, o.fpdus)
	}
	return wire.FPDULen(o.ulpdu)
}

// seal completes the FPDU that compose began, and returns its length.
func (c *Conn) seal(b []byte) int {
	o := &c.out
	n := o.fpduLen()
	if o.markers {
		wire.AppendMarkedFPDU(b[:0], c.e.ulpdu[:o.ulpdu], o.fpdus, o.crc)
	} else {
		wire.PutFPDU(b[:n], o.ulpdu, o.crc)
	}
	c.sum(b)
	o.fpdus += uint64(n)
	c.e.stats.Sent++
	return o.wrote(n)
}

// transmit writes the next frame or FPDU of the connection. Messages are sent one after the other:
// requests and answers alternate, as far as there are both.
func (c *Conn) transmit(now transport.Time, b []byte) (n int) {
	o := &c.out
	switch {
	case len(o.frame) > 0:
		if !o.fits(len(o.frame)) {
			return 0
		}
		n = o.wrote(copy(b, o.frame))
		c.e.tape.Out(tape.Streams, o.frame)
		o.frame = nil
		if c.state == ending {
			c.finish(now)
		}
		return n
	case c.state == ending:
		return c.sendTerminate(now, b)
	case c.state != ready || c.user == nil || o.mute:
		return 0
	case c.setup.rtr != 0 && !c.setup.passive && !o.rtrSent:
		return c.sendRTR(b)
	}
	requests := c.requester.midway() || o.turn && !c.responder.midway()
	if requests {
		n = c.requester.send(b)
	} else {
		n = c.responder.send(now, b)
	}
	if n == 0 && !c.requester.midway() && !c.responder.midway() { // there is none, or it does not fit
		if requests = !requests; requests {
			n = c.requester.send(b)
		} else {
			n = c.responder.send(now, b)
		}
	}
	o.turn = !requests
	if n == 0 && o.prompt.wanted && !c.requester.midway() && !c.responder.midway() {
		n = c.sendEmpty(b)
		o.prompt.wanted = n == 0
	}
	c.expect(now)
	return n
}

// prompt is a WRITE of no bytes, which does nothing, and makes a peer that is silent go on.
//
// A peer's TCP may keep its acknowledgement back until more comes: Linux's, 40 ms. SENDs and WRITEs would be
// done that late, and a program that listens again when its last SEND is done would miss a peer that calls. A
// second short segment is acknowledged at once.
//
// Linux's siw may miss the message with which a connection begins, if it comes while siw gets ready. The next one
// tells it.
type prompt struct {
	timer  timer.Handle // the peer is silent for so long
	wanted bool         // it is to be sent
	sent   bool         // and nothing was acknowledged since
	again  int          // times that the message with which the connection begins was repeated
}

const (
	promptTime transport.Time = 1e6   // for an acknowledgement
	beginTime  transport.Time = 100e6 // for the peer's first message; each time it is twice as long
	beginAgain                = 8
)

// expect arms the timer, if the peer is to say something.
func (c *Conn) expect(now transport.Time) {
	p, at := &c.out.prompt, now+promptTime
	switch {
	case c.state != ready:
		return
	case c.requester.sentPushes > 0 && !p.sent:
	case c.unheard() && p.again < beginAgain:
		at = now + beginTime<<p.again
	default:
		return
	}
	if !p.timer.Armed() || c.e.timers.At(p.timer) > at {
		c.e.timers.Arm(&p.timer, c, kindSilent, at)
	}
}

// unheard reports whether this end has begun, and the peer has said nothing yet. An initiator that did not agree
// to begin may have a peer that never speaks.
func (c *Conn) unheard() bool {
	return c.out.fpdus > 0 && c.responder.segments == 0 && (c.setup.passive || c.setup.rtr == wire.RTRWrite)
}

// silent is called when the peer has been silent for so long.
func (c *Conn) silent() {
	p := &c.out.prompt
	switch {
	case c.requester.sentPushes > 0 && !p.sent:
		p.sent = true
	case c.unheard():
		p.again++
	default:
		return
	}
	p.wanted = true
	c.wake()
}

// sendTerminate sends the Terminate that is the stream's last FPDU.
func (c *Conn) sendTerminate(now transport.Time, b []byte) int {
	d := &c.closing
	if d.length == 0 {
		return 0
	}
	data, ok := c.compose(b, &wire.Header{Opcode: wire.OpTerminate, Last: true, MSN: 1}, d.length)
	if !ok {
		return 0
	}
	copy(data, d.last[:])
	d.length = 0
	n := c.seal(b)
	c.finish(now)
	return n
}

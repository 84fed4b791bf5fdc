package roce

import (
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Conn is a connection of a queue pair over RoCEv2. It tracks its own requests in progress
// (requester) and the peer's requests that it accepted (responder).
type Conn struct {
	end     end
	given   bool // attached to a queue pair, now or before
	opened  transport.Time
	turn    bool         // answers are sent before requests
	parting timer.Handle // when it fires, the connection is removed

	requester requester
	responder responder
}

var _ transport.Conn = (*Conn)(nil)

// parts is how long a connection that its queue pair has left still repeats its answers.
const parts transport.Time = 1e9

// Attach implements transport.Conn. RoCE has no connections that complete requests out of order, or
// continue after one that failed.
func (c *Conn) Attach(t *transport.Terms) (segment int, ok bool) {
	switch {
	case c.given, t.Unordered, t.InError, t.Sending == nil, t.Peer > ib.QPNMask,
		abi.PathMTUFor(t.PathMTU).Bytes() != t.PathMTU, t.PathMTU+overhead(&c.end.way) > c.end.port.MTU:
		return 0, false
	}
	c.given, c.end.segment, c.end.terms, c.end.user, c.end.account = true, t.PathMTU, *t, t.Endpoint, t.Account
	c.end.notes = transport.Notes{Account: t.Account, QPN: t.QPN, Conn: t.QPN, Wire: traced}
	switch {
	case t.XRC:
		c.end.service = ib.XRC
	case t.Unreliable:
		c.end.service = ib.UC
	}
	c.requester.reads, c.requester.rto = t.Reads, c.requester.rtt.rto()
	c.requester.limit.none = t.Unreliable || t.XRC // their receives are shared
	c.end.e.congestion.Init(&c.requester.traffic)
	c.responder.expected, c.responder.message = wire.PSN(t.PSN), 1
	c.end.port.join(c)
	return c.end.segment, true
}

// Ordered implements transport.Conn.
func (c *Conn) Ordered() bool { return true }

// Features implements transport.Conn.
func (c *Conn) Features() transport.Features {
	return transport.AllFeatures &^ (transport.Unordered | transport.FailureAlone)
}

// ID implements transport.Conn. It returns the number of the queue pair.
func (c *Conn) ID() uint32 { return c.end.terms.QPN }

// Prefetch implements transport.Conn.
func (c *Conn) Prefetch() {}

// LimitReads implements transport.Conn.
func (c *Conn) LimitReads(n int) { c.requester.reads = n }

// Issue implements transport.Conn.
func (c *Conn) Issue(now transport.Time, r *transport.Request) (n int, err error) {
	if c.responder.refused != 0 {
		return 0, transport.ErrWindow // the queue pair is about to fail
	}
	return c.requester.issue(now, r)
}

// UnderWay implements transport.Conn.
func (c *Conn) UnderWay() (pushes, pulls int) { return c.requester.pushes, c.requester.pulls }

// Forget implements transport.Conn. Answers of the peer to the requests are ignored from now on.
func (c *Conn) Forget() {
	c.requester.drop()
	c.end.failing.Remove()
}

// Drain implements transport.Conn. For a while, accepted requests are acknowledged if the peer
// repeats them.
func (c *Conn) Drain(now transport.Time) {
	if c.end.closed {
		return
	}
	c.letGo()
	c.end.arm(&c.parting, kindParting, now+parts)
}

// Close implements transport.Conn.
func (c *Conn) Close(transport.Time) {
	if c.end.closed {
		return
	}
	c.letGo()
	c.leave()
}

// Abort implements transport.Conn. A peer that broke the rules is told by a NAK, if at all; the NAK
// is on its way, or need not be repeated.
func (c *Conn) Abort(now transport.Time) { c.Drain(now) }

// letGo detaches the queue pair.
func (c *Conn) letGo() {
	c.Forget()
	c.end.user = nil
	c.responder.dropAnswers()
	c.end.stop(&c.responder.again)
}

// leave removes the connection from its port for good.
func (c *Conn) leave() {
	c.end.closed = true
	c.end.stop(&c.parting)
	c.end.stop(&c.requester.pace)
	c.end.place.Remove()
	c.end.port.leave(c)
}

// due handles a timer.
func (c *Conn) due(now transport.Time, kind timer.Kind) {
	switch kind {
	case kindRetry:
		c.requester.timedOut(now)
	case kindAnswer, kindPace:
		c.end.wake()
	case kindParting:
		c.leave()
	}
}

// Timers of a connection.
const (
	kindRetry timer.Kind = iota
	kindAnswer
	kindParting
	kindPace
)

// end holds what both halves of a connection need to know of this end.
type end struct {
	e       *Engine
	port    *Port
	conn    *Conn // that this end belongs to, for lists and timers
	way     wire.Way
	closed  bool
	segment int // data bytes of every packet but the last of a message
	service ib.Opcode
	terms   transport.Terms
	user    transport.Endpoint // nil: the queue pair has detached
	account *transport.Account
	notes   transport.Notes
	place   list.Node[Conn] // in Port.line: has something to send
	failing list.Node[Conn] // in Engine.failing: the data to send could not be read
}

// arm arms a timer.
func (x *end) arm(h *timer.Handle, kind timer.Kind, at transport.Time) {
	x.e.timers.Arm(h, x.conn, kind, at)
}

// stop stops a timer.
func (x *end) stop(h *timer.Handle) { x.e.timers.Stop(h) }

// serial returns a PSN as traces compare it: shifted to the top of 32 bits, so that both wrap
// together.
func serial(psn wire.PSN) uint32 { return uint32(psn) << 8 }

// settle ends a group of calls to the queue pair, if it is still attached.
func (x *end) settle(now transport.Time) {
	if x.user != nil {
		x.user.Settle(now)
	}
}

// wake queues the connection for sending.
func (x *end) wake() {
	if !x.closed {
		x.port.line.PushBack(&x.place, x.conn)
		x.port.enter()
	}
}

// begin sets the engine's headers to what all packets of the connection have in common.
func (x *end) begin(op ib.Opcode, psn wire.PSN) *wire.Headers {
	h := &x.e.out
	*h = wire.Headers{BTH: wire.BTH{Opcode: wire.Opcode(x.service, op), Migrated: true, PKey: wire.DefaultPKey, DestQP: x.terms.Peer, PSN: psn}}
	return h
}

// dataAt returns the offset at which the data of a packet with headers h begins.
func (x *end) dataAt(h *wire.Headers) int { return x.way.HeaderLen() + wire.Opcodes[h.BTH.Opcode].Len }

// finish completes a packet whose n data bytes are already in b, and returns its length.
func (x *end) finish(h *wire.Headers, b []byte, n int) int {
	at, ip := x.dataAt(h), x.way.HeaderLen()
	pad := ib.PadLen(n)
	h.BTH.Pad = uint8(pad)
	h.Append(b[ip:ip])
	end := at + n + pad
	clear(b[at+n : end])
	x.way.Put(b[:end+wire.ICRCLen])
	return end + wire.ICRCLen
}

// maxOverhead is the maximum length of a packet without its data.
const maxOverhead = wire.MaxOverhead + wire.MaxHeaderLen

// overhead returns the maximum length of a packet with data, without the data.
func overhead(w *wire.Way) int {
	return w.HeaderLen() + wire.MaxDataHeaderLen + wire.ICRCLen
}

// transmit writes the next packet of the connection into b and returns its length, 0 if there is
// none now. Notifications and acknowledgements are sent even if the rate holds back other packets.
func (c *Conn) transmit(now transport.Time, b []byte) (n int) {
	if n = c.responder.sendCNP(now, b); n > 0 {
		return n
	}
	if n = c.responder.sendReply(b); n > 0 || c.requester.held(now) {
		return n
	}
	n = c.sendNext(now, b)
	c.requester.left(now, n)
	return n
}

// sendNext sends an answer or a request, alternately.
func (c *Conn) sendNext(now transport.Time, b []byte) (n int) {
	if c.turn = !c.turn; c.turn {
		if n = c.requester.send(now, b); n > 0 {
			return n
		}
	}
	if n = c.responder.sendAnswer(now, b); n > 0 || c.turn {
		return n
	}
	return c.requester.send(now, b)
}

// unreadable ends a request or answer that could not be sent because its memory is gone.
func (c *Conn) unreadable(now transport.Time) {
	switch {
	case c.end.user == nil:
	case c.responder.spoiled:
		c.responder.refuseUnreadable(now)
	default:
		c.requester.failFront(now)
	}
	c.end.settle(now)
}

// receive handles a packet of the peer.
func (c *Conn) receive(now transport.Time, h *wire.Headers, data []byte, marked bool) {
	op := h.BTH.Opcode
	if op == wire.CNP {
		c.end.port.stats.CNPs++
		c.end.e.congestion.Notified(&c.requester.traffic, now)
		return
	}
	if marked {
		c.responder.marks.see(h)
		c.end.wake()
	}
	switch {
	case op.Info().Kind == ib.KindResponse:
		c.requester.response(now, h, data)
	case c.end.terms.Unreliable:
		c.responder.takeUnreliable(now, h, data)
	default:
		c.responder.request(now, h, data)
	}
	c.end.settle(now)
}

// speaks reports whether an opcode belongs to the connection's service (IBA §9.6.1.3.2). Unreliable
// connections have no masked atomics, and XRC uses the prefix that theirs would have.
func (c *Conn) speaks(op ib.Opcode) bool {
	service := op & ib.ServiceMask
	return op == wire.CNP || service == c.end.service || service == c.end.service|wire.Vendor && !c.end.terms.Unreliable
}

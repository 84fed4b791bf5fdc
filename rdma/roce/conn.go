package roce

import (
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Conn is a connection of a queue pair over RoCEv2. It tracks its own requests in progress
// (requester) and the peer's requests that it accepted (responder).
type Conn struct {
	end
	given   bool // attached once
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
	case c.given, t.Unordered, t.InError, t.Sending == nil, t.Peer > wire.QPNMask,
		abi.PathMTUFor(t.PathMTU).Bytes() != t.PathMTU, t.PathMTU+overhead(&c.way) > c.port.MTU:
		return 0, false
	}
	c.given, c.segment, c.terms, c.user, c.account = true, t.PathMTU, *t, t.Endpoint, t.Account
	switch {
	case t.XRC:
		c.service = wire.XRC
	case t.Unreliable:
		c.service = wire.UC
	}
	c.requester.reads, c.requester.rto = t.Reads, c.requester.rtt.rto()
	c.requester.limit.none = t.Unreliable || t.XRC // their receives are shared
	c.e.congestion.Init(&c.requester.traffic)
	c.responder.expected, c.responder.message = wire.PSN(t.PSN), 1
	c.port.join(c)
	return c.segment, true
}

// Ordered implements transport.Conn.
func (c *Conn) Ordered() bool { return true }

// ID implements transport.Conn. It returns the number of the queue pair.
func (c *Conn) ID() uint32 { return c.terms.QPN }

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
	c.failing.Remove()
}

// Drain implements transport.Conn. For a while, accepted requests are acknowledged if the peer
// repeats them.
func (c *Conn) Drain(now transport.Time) {
	if c.closed {
		return
	}
	c.letGo()
	c.arm(&c.parting, kindParting, now+parts)
}

// Close implements transport.Conn.
func (c *Conn) Close(transport.Time) {
	if c.closed {
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
	c.user = nil
	c.responder.dropAnswers()
	c.stop(&c.responder.again)
}

// leave removes the connection from its port for good.
func (c *Conn) leave() {
	c.closed = true
	c.stop(&c.parting)
	c.stop(&c.requester.pace)
	c.place.Remove()
	c.port.leave(c)
}

// due handles a timer.
func (c *Conn) due(now transport.Time, kind timer.Kind) {
	switch kind {
	case kindRetry:
		c.requester.timedOut(now)
	case kindAnswer, kindPace:
		c.wake()
	case kindParting:
		c.leave()
	}
}

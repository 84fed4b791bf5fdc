package roce

import (
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Conn is a connection of a queue pair over RoCEv2. It knows the requests under way (requester) and
// what it took of the peer's (responder).
type Conn struct {
	end
	given   bool // attached once
	opened  transport.Time
	turn    bool         // answers before requests
	parting timer.Handle // it is forgotten then

	requester requester
	responder responder
}

var _ transport.Conn = (*Conn)(nil)

// parts is how long a connection that its queue pair has left answers what it had taken.
const parts transport.Time = 1e9

// Attach implements transport.Conn. There are no connections here that complete requests in another
// order, or go on behind one that failed.
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
	c.requester.limit.none = t.Unreliable || t.XRC // whose receives are shared
	c.e.congestion.Init(&c.requester.traffic)
	c.responder.expected, c.responder.message = wire.PSN(t.PSN), 1
	c.port.join(c)
	return c.segment, true
}

// Ordered implements transport.Conn.
func (c *Conn) Ordered() bool { return true }

// ID implements transport.Conn: the number of the queue pair.
func (c *Conn) ID() uint32 { return c.terms.QPN }

// Prefetch implements transport.Conn.
func (c *Conn) Prefetch() {}

// LimitReads implements transport.Conn.
func (c *Conn) LimitReads(n int) { c.requester.reads = n }

// Issue implements transport.Conn.
func (c *Conn) Issue(now transport.Time, r *transport.Request) (n int, err error) {
	if c.responder.refused != 0 {
		return 0, transport.ErrWindow // the queue pair ends
	}
	return c.requester.issue(now, r)
}

// UnderWay implements transport.Conn.
func (c *Conn) UnderWay() (pushes, pulls int) { return c.requester.pushes, c.requester.pulls }

// Forget implements transport.Conn. What the peer says to the requests under way is not recognised
// any more.
func (c *Conn) Forget() {
	c.requester.drop()
	c.failing.Remove()
}

// Drain implements transport.Conn: what was taken is acknowledged for a while, should the peer ask
// again.
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

// Abort implements transport.Conn. A peer that broke the rules is told so by a NAK, if at all,
// which is on its way or is not worth to be repeated.
func (c *Conn) Abort(now transport.Time) { c.Drain(now) }

// letGo forgets the queue pair.
func (c *Conn) letGo() {
	c.Forget()
	c.user = nil
	c.responder.dropAnswers()
	c.stop(&c.responder.again)
}

// leave takes the connection out of its port, for good.
func (c *Conn) leave() {
	c.closed = true
	c.stop(&c.parting)
	c.stop(&c.requester.pace)
	c.place.Remove()
	c.port.leave(c)
}

// due takes a timer that ended.
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

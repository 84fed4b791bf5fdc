package rof

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// leastSegment is the minimum of data bytes per packet. A connection with less room is refused.
const leastSegment = 64

// Conn is a connection of a queue pair over Falcon, or over a carrier inside the NIC. It tracks its
// own requests in progress (initiator) and the unfinished requests of the peer (target).
type Conn struct {
	end
	given bool // attached once

	initiator initiator
	target    target
}

var (
	_ transport.Conn = (*Conn)(nil)
	_ User           = (*Conn)(nil)
)

// Over makes a connection over carrier, which must not have delivered anything yet.
func (e *Engine) Over(carrier Carrier) *Conn {
	c := &Conn{end: end{e: e, carrier: carrier, ordered: carrier.Config().Ordered}}
	c.falcon, _ = carrier.(*falcon.Conn)
	c.initiator.end, c.target.end = &c.end, &c.end
	carrier.SetUser(c)
	return c
}

// Attach implements transport.Conn.
func (c *Conn) Attach(t *transport.Terms) (segment int, ok bool) {
	segment = min(t.PathMTU, c.carrier.Config().MTU-wire.MaxDataHeaderLen) &^ 3
	if c.given || segment < leastSegment || t.Peer > wire.QPNMask || t.Unreliable && !c.ordered {
		return 0, false
	}
	c.given, c.segment, c.terms, c.user, c.account = true, segment, *t, t.Endpoint, t.Account
	switch {
	case t.XRC:
		c.service = wire.XRC
	case t.Unreliable:
		c.service = wire.UC
	}
	c.initiator.begin(t.Reads)
	c.target.begin()
	return segment, true
}

// Ordered implements transport.Conn.
func (c *Conn) Ordered() bool { return c.ordered }

// ID implements transport.Conn. It returns the connection identifier of this end.
func (c *Conn) ID() uint32 { return c.id() }

// Prefetch implements transport.Conn.
func (c *Conn) Prefetch() {
	if c.falcon != nil {
		c.falcon.Prefetch()
	}
}

// LimitReads implements transport.Conn.
func (c *Conn) LimitReads(n int) { c.initiator.reads = n }

// UnderWay implements transport.Conn.
func (c *Conn) UnderWay() (pushes, pulls int) { return c.initiator.pushes, c.initiator.pulls }

// Issue implements transport.Conn.
func (c *Conn) Issue(now falcon.Time, r *transport.Request) (n int, err error) {
	return c.initiator.issue(now, r)
}

// Forget implements transport.Conn. Falcon's answers to the requests are ignored from now on.
func (c *Conn) Forget() { c.initiator.forget() }

// Drain implements transport.Conn.
func (c *Conn) Drain(now falcon.Time) {
	c.letGo()
	c.carrier.Drain(now)
}

// Close implements transport.Conn.
func (c *Conn) Close(now falcon.Time) {
	c.letGo()
	c.carrier.Close(now)
}

// Abort implements transport.Conn.
func (c *Conn) Abort(now falcon.Time) {
	c.letGo()
	c.carrier.Abort(now, falcon.CloseULP)
}

// letGo detaches the queue pair. Requests of the peer are refused from now on.
func (c *Conn) letGo() {
	c.user = nil
	c.initiator.forget()
	c.target.dropServed()
}

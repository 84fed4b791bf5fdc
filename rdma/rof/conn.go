package rof

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// leastSegment is the least of data bytes of a packet; connections that leave less are refused.
const leastSegment = 64

// Conn is a connection of a queue pair over Falcon, or over what stands for it inside a NIC. It
// knows the requests under way (initiator) and those of the peer that are not done (target).
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

// Over makes a connection over carrier, which has delivered nothing yet.
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

// ID implements transport.Conn: the connection identifier of this end.
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

// Forget implements transport.Conn. Falcon's answers are not recognised any more.
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

// letGo forgets the queue pair. Requests of the peer are refused from here on.
func (c *Conn) letGo() {
	c.user = nil
	c.initiator.forget()
	c.target.dropServed()
}

package rof

import (
	"errors"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// leastSegment is the least of data bytes of a packet; connections that leave less are refused.
const leastSegment = 64

// Conn is a connection of a queue pair over Falcon, or over what stands for it inside a NIC. It
// knows the requests under way (initiator) and those of the peer that are not done (target).
type Conn struct {
	e       *Engine
	carrier Carrier
	falcon  *falcon.Conn // the carrier, unless the connection is inside the NIC
	ordered bool
	given   bool // attached once
	segment int  // most data bytes of one packet
	service wire.Opcode
	terms   transport.Terms
	user    transport.Endpoint // nil: the queue pair has let go
	account *transport.Account

	initiator
	target
}

var (
	_ transport.Conn = (*Conn)(nil)
	_ User           = (*Conn)(nil)
)

// Over makes a connection over carrier, which has delivered nothing yet.
func (e *Engine) Over(carrier Carrier) *Conn {
	c := &Conn{e: e, carrier: carrier, ordered: carrier.Config().Ordered}
	c.falcon, _ = carrier.(*falcon.Conn)
	carrier.SetUser(c)
	return c
}

// Attach implements transport.Conn.
func (c *Conn) Attach(t *transport.Terms) (segment int, ok bool) {
	segment = min(t.PathMTU, c.carrier.Config().MTU-wire.MaxDataHeaderLen) &^ 3
	if c.given || segment < leastSegment || t.Peer > wire.QPNMask {
		return 0, false
	}
	c.given, c.segment, c.terms, c.user, c.account = true, segment, *t, t.Endpoint, t.Account
	if t.XRC {
		c.service = wire.XRC
	}
	c.initiator.begin(&c.e.segments, t.Reads)
	c.target.begin(c.ordered)
	return segment, true
}

// Ordered implements transport.Conn.
func (c *Conn) Ordered() bool { return c.ordered }

// ID implements transport.Conn: the connection identifier of this end.
func (c *Conn) ID() uint32 { return c.carrier.Config().LocalCID }

// inside reports whether the connection does not leave the NIC.
func (c *Conn) inside() bool { return c.falcon == nil }

// Prefetch implements transport.Conn.
func (c *Conn) Prefetch() {
	if c.falcon != nil {
		c.falcon.Prefetch()
	}
}

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
	c.Forget()
	c.dropServed()
}

// errGone tells the carrier that the data of a packet is no longer to be had.
var errGone = errors.New("rdma: the operation is over")

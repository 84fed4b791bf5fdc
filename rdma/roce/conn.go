package roce

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Conn is a connection of a queue pair over RoCEv2. It knows the requests under way (requester) and
// what it took of the peer's (responder).
type Conn struct {
	e       *Engine
	port    *Port
	way     wire.Way
	credits *credit.Node // nil: none are needed
	given   bool         // attached once
	closed  bool
	segment int // data bytes of every packet but the last of a message
	service wire.Opcode
	terms   transport.Terms
	user    transport.Endpoint // nil: the queue pair has let go
	account *transport.Account
	place   list.Node[Conn] // in Engine.line: has something to send
	failing list.Node[Conn] // in Engine.failing: could not read what it had to send
	turn    bool            // answers before requests
	parting timer.Handle    // it is forgotten then
	pace    timer.Handle    // its next packet may leave then

	requester
	responder
}

var _ transport.Conn = (*Conn)(nil)

// Timers of a connection.
const (
	kindRetry timer.Kind = iota
	kindAnswer
	kindParting
	kindPace
)

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
	if t.XRC {
		c.service = wire.XRC
	}
	c.reads = t.Reads
	c.e.congestion.Init(&c.traffic)
	c.expected, c.message = wire.PSN(t.PSN), 1
	c.port.join(c)
	return c.segment, true
}

// MaxOverhead is the most that a packet has around its data, or without data.
const MaxOverhead = wire.MaxOverhead + wire.MaxHeaderLen

// overhead is what a packet with data has around it, at most.
func overhead(w *wire.Way) int {
	return w.HeaderLen() + wire.MaxDataHeaderLen + wire.ICRCLen
}

// Ordered implements transport.Conn.
func (c *Conn) Ordered() bool { return true }

// ID implements transport.Conn: the number of the queue pair.
func (c *Conn) ID() uint32 { return c.terms.QPN }

// Prefetch implements transport.Conn.
func (c *Conn) Prefetch() {}

// LimitReads implements transport.Conn.
func (c *Conn) LimitReads(n int) { c.reads = n }

// UnderWay implements transport.Conn.
func (c *Conn) UnderWay() (pushes, pulls int) { return c.pushes, c.pulls }

// Forget implements transport.Conn. What the peer says to the requests under way is not recognised
// any more.
func (c *Conn) Forget() {
	for i := range c.entries.Len() {
		c.returnCredits(c.entries.At(i))
	}
	c.drop()
	c.blocked = false
	c.e.timers.Stop(&c.timer)
	c.failing.Remove()
}

// Drain implements transport.Conn: what was taken is acknowledged for a while, should the peer ask
// again.
func (c *Conn) Drain(now transport.Time) {
	if c.closed {
		return
	}
	c.letGo()
	c.e.timers.Arm(&c.parting, c, kindParting, now+parts)
}

// Close implements transport.Conn.
func (c *Conn) Close(transport.Time) {
	if c.closed {
		return
	}
	c.letGo()
	c.leave()
}

// Abort implements transport.Conn. A peer that broke the rules is told so by a NAK, if at all, which
// is on its way or is not worth to be repeated.
func (c *Conn) Abort(now transport.Time) { c.Drain(now) }

// letGo forgets the queue pair.
func (c *Conn) letGo() {
	c.Forget()
	c.user = nil
	for c.answers.Len() > 0 {
		c.answers.Pop().memory = nil
	}
	c.e.timers.Stop(&c.again)
}

// leave takes the connection out of its port, for good.
func (c *Conn) leave() {
	c.closed = true
	c.e.timers.Stop(&c.parting)
	c.e.timers.Stop(&c.pace)
	c.place.Remove()
	c.port.leave(c)
}

// returnCredits gives back what an entry took.
func (c *Conn) returnCredits(e *entry) {
	if c.credits == nil {
		return
	}
	for left, first := int(e.length), true; left > 0 || first; first = false {
		n := min(left, c.segment)
		x := cost(e.pulls(), n)
		_ = c.credits.Return(&x) // counted by the node; cannot fail for what was taken
		left -= n
	}
	c.e.host.CreditsChanged()
}

// wake puts the connection in line to send.
func (c *Conn) wake() {
	if !c.closed {
		c.e.line.PushBack(&c.place, c)
	}
}

// due takes a timer that ended.
func (c *Conn) due(now transport.Time, kind timer.Kind) {
	switch kind {
	case kindRetry:
		c.timedOut(now)
	case kindAnswer, kindPace:
		c.wake()
	case kindParting:
		c.leave()
	}
}

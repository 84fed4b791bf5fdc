package iwarp

import (
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/iwarp/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Conn is an iWARP connection on a stream of bytes: what its queue pair does with it, and what the
// owner of the stream does. The parts know each other by it.
type Conn struct {
	Owner any // for the use of the stream's owner

	e       *Engine
	state   state
	setup   setup
	in      input
	out     output
	closing closing
	place   list.Node[Conn] // in Engine.line
	failing list.Node[Conn] // in Engine.failing

	user    transport.Endpoint // nil: no queue pair, not yet or no more
	terms   transport.Terms
	given   bool // attached to a queue pair, now or before
	forgot  bool // the queue pair has dropped its requests: it has failed
	segment int  // data bytes of every packet but the last of a message
	account *transport.Account
	notes   transport.Notes

	requester requester
	responder responder
}

var _ transport.Conn = (*Conn)(nil)

// state says how far a connection has come.
//
//	Answer ─▶ awaitRequest ─▶ requested ── Accept ──┐
//	                             │ Reject           ├─▶ ready ─▶ ending ─▶ gone
//	Connect ─▶ awaitReply ───────┼──────────────────┘              ▲
//	                             └──────────────────────────────────┘
type state uint8

const (
	awaitRequest state = iota // the peer's request is to come
	requested                 // Accept or Reject is to come
	awaitReply                // the peer's reply is to come
	ready                     // FPDUs go both ways, as soon as a queue pair is attached
	ending                    // what comes in is dropped; a last frame or FPDU may be to be sent
	gone
)

// Attach implements transport.Conn. The connection must be established or accepted.
func (c *Conn) Attach(t *transport.Terms) (segment int, ok bool) {
	segment = min(t.PathMTU, c.MTU())
	if c.given || c.state != ready || t.Unordered || t.InError || t.Unreliable || t.XRC || segment <= 0 {
		return 0, false
	}
	c.given, c.user, c.terms, c.account, c.segment = true, t.Endpoint, *t, t.Account, segment
	c.notes = transport.Notes{Account: t.Account, QPN: t.QPN, Conn: t.QPN, Wire: traced}
	c.requester.limit(t.Reads)
	c.setup.private()
	c.wake()
	return segment, true
}

// MTU returns how many data bytes of a message an FPDU can carry.
func (c *Conn) MTU() int { return c.out.mulpdu - wire.UntaggedLen }

// Ordered implements transport.Conn.
func (c *Conn) Ordered() bool { return true }

// Features implements transport.Conn. A message that finds no receive ends the stream, and TCP
// confirms that data has arrived, not that it was accepted.
func (c *Conn) Features() transport.Features { return 0 }

// ID implements transport.Conn. It returns the number of the queue pair.
func (c *Conn) ID() uint32 { return c.terms.QPN }

// Prefetch implements transport.Conn.
func (c *Conn) Prefetch() {}

// LimitReads implements transport.Conn. There are never more READs and atomics under way than both
// ends agreed on.
func (c *Conn) LimitReads(n int) { c.requester.limit(n) }

// UnderWay implements transport.Conn.
func (c *Conn) UnderWay() (pushes, pulls int) {
	return c.requester.pushes.Len(), c.requester.pulls.Len()
}

// Issue implements transport.Conn.
func (c *Conn) Issue(_ transport.Time, r *transport.Request) (n int, err error) {
	if c.state != ready || c.user == nil || c.forgot {
		return 0, transport.ErrEnding
	}
	return c.requester.issue(r)
}

// Forget implements transport.Conn. A stream does not survive it, since messages that were begun
// cannot be finished: unless the peer is told of another error, Run tells it of this one.
func (c *Conn) Forget() {
	c.requester.drop()
	if c.forgot = true; c.state == ready {
		c.e.failing.PushBack(&c.failing, c)
	}
}

// Drain implements transport.Conn. There is nobody any more who could answer, so it closes.
func (c *Conn) Drain(now transport.Time) { c.Close(now) }

// Abort implements transport.Conn. A peer that broke the rules has its Terminate already.
func (c *Conn) Abort(now transport.Time) { c.Close(now) }

// Close implements transport.Conn, and ends a connection that has no queue pair. The stream is closed
// behind the last whole message; in the middle of one, the peer is told.
func (c *Conn) Close(now transport.Time) {
	c.user = nil
	c.failing.Remove()
	switch {
	case c.state >= ending:
	case c.state != ready:
		c.vanish(now, "closed by this end while it was set up")
	case c.forgot, c.requester.midway(), c.responder.midway():
		c.terminate(now, wire.LocalCatastrophic, nil)
	default:
		c.end(now, "closed by this end")
	}
	c.requester.drop()
	c.responder.drop()
}

// Ending says why a connection is over or ends. reset says that the stream did not end in an orderly
// way and is to be reset, unless it is lost already.
func (c *Conn) Ending() (why string, reset bool) { return c.closing.why, c.closing.reset }

// settle ends a group of calls to the queue pair, if it is still attached.
func (c *Conn) settle(now transport.Time) {
	if c.user != nil {
		c.user.Settle(now)
	}
}

// wake queues the connection for Transmit.
func (c *Conn) wake() {
	if c.state != gone {
		c.e.line.PushBack(&c.place, c)
	}
}

// Timers of a connection.
const (
	kindPatience timer.Kind = iota // set-up, the peer's first FPDU, or the end takes too long
	kindAnswer                     // the rate allows the next answer
	kindSilent                     // the peer has not acknowledged, or not said, anything
)

// due handles a timer.
func (c *Conn) due(now transport.Time, kind timer.Kind) {
	switch {
	case kind == kindAnswer:
		c.wake()
	case kind == kindSilent:
		c.silent()
	case c.state == ready:
		c.speak()
	case c.state == ending:
		c.vanish(now, c.closing.why)
	default:
		c.e.stats.Wrong++
		c.vanish(now, "the peer's frame did not come in time")
	}
}

// fail ends the stream for a reason of this end: memory of something that was to be sent is gone, or
// the queue pair has failed.
func (c *Conn) fail(now transport.Time) {
	if c.state != ready || c.user == nil {
		return
	}
	switch {
	case c.responder.spoiled:
		c.responder.refuseUnreadable(now)
	case c.forgot:
		c.terminate(now, wire.LocalCatastrophic, nil)
	case c.requester.spoiled:
		c.requester.failUnreadable(now)
	}
	c.settle(now)
}

// closed tells the queue pair, if it is still attached, that the connection is over.
func (c *Conn) closed(now transport.Time, st abi.WCStatus, why string) {
	u := c.user
	if u == nil {
		return
	}
	c.user = nil
	c.failing.Remove()
	c.requester.drop()
	c.responder.drop()
	u.Ended(now, st, why)
	u.Settle(now)
}

package rof

import (
	"fmt"

	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// leastSegment is the minimum of data bytes per packet. A connection with less room is refused.
const leastSegment = 64

// Conn is a connection of a queue pair over Falcon, or over a pipe inside the NIC. It tracks its
// own requests in progress (initiator) and the unfinished requests of the peer (target).
type Conn struct {
	end       end
	attached  bool // to a queue pair, now or before
	initiator initiator
	target    target
}

// end holds what both halves of a connection need to know of this end.
type end struct {
	e       *Engine
	pipe    Pipe
	falcon  *falcon.Conn // the pipe, unless the connection is inside the NIC
	ordered bool
	segment int       // maximum of data bytes in one packet, as agreed
	fits    int       // maximum that the network carries, at most segment
	service ib.Opcode // of the opcodes
	terms   transport.Terms
	user    transport.Endpoint // nil: the queue pair has detached
	account *transport.Account
	notes   transport.Notes
}

var (
	_ transport.Conn = (*Conn)(nil)
	_ User           = (*Conn)(nil)
)

// Over makes a connection over a pipe that has not delivered anything yet.
func (e *Engine) Over(pipe Pipe) *Conn {
	c := &Conn{end: end{e: e, pipe: pipe, ordered: pipe.Config().Ordered}}
	c.end.falcon, _ = pipe.(*falcon.Conn)
	c.initiator.end, c.target.end = &c.end, &c.end
	pipe.SetUser(c)
	return c
}

// Attach implements transport.Conn.
func (c *Conn) Attach(t *transport.Terms) (segment int, ok bool) {
	x := &c.end
	segment = min(t.PathMTU, x.pipe.Config().MTU-wire.MaxDataHeaderLen) &^ 3
	if c.attached || segment < leastSegment || t.Peer > ib.QPNMask || t.Unreliable && !x.ordered {
		return 0, false
	}
	c.attached, x.segment, x.fits, x.terms, x.user, x.account = true, segment, segment, *t, t.Endpoint, t.Account
	x.notes = transport.Notes{Account: t.Account, QPN: t.QPN, Conn: c.ID()}
	x.notes.Wire, x.notes.Flags = traced(x.falcon != nil)
	switch {
	case t.XRC:
		x.service = ib.XRC
	case t.Unreliable:
		x.service = ib.UC
	}
	c.initiator.begin(t.Reads)
	c.target.begin()
	return segment, true
}

// Ordered implements transport.Conn.
func (c *Conn) Ordered() bool { return c.end.ordered }

// Features implements transport.Conn.
func (c *Conn) Features() transport.Features { return transport.AllFeatures }

// ID implements transport.Conn. It returns the connection identifier of this end.
func (c *Conn) ID() uint32 { return c.end.pipe.Config().LocalCID }

// Prefetch implements transport.Conn.
func (c *Conn) Prefetch() {
	if c.end.falcon != nil {
		c.end.falcon.Prefetch()
	}
}

// Pair returns the numbers of the queue pair and of its peer.
func (c *Conn) Pair() (qpn, peer uint32) { return c.end.terms.QPN, c.end.terms.Peer }

// LimitReads implements transport.Conn.
func (c *Conn) LimitReads(n int) { c.initiator.reads = n }

// UnderWay implements transport.Conn.
func (c *Conn) UnderWay() (pushes, pulls int) { return c.initiator.pushes, c.initiator.pulls }

// Issue implements transport.Conn.
func (c *Conn) Issue(now falcon.Time, r *transport.Request) (n int, err error) {
	return c.initiator.issue(now, r)
}

// Handle implements User. After the queue pair has detached, most events are ignored.
func (c *Conn) Handle(now falcon.Time, ev *falcon.Event) {
	u := c.end.user
	if u == nil {
		switch ev.Kind { // the connection is closing
		case falcon.EvPush:
			c.end.pipe.NackPush(now, ev.RSN, falconwire.NackNRE, 0, uint8(synNotServing))
		case falcon.EvPull:
			c.end.pipe.NackPush(now, ev.RSN, falconwire.NackCID, 0, 0)
		}
		return
	}
	switch {
	case c.end.terms.Unreliable && ev.Kind == falcon.EvPush:
		c.target.takeUnreliable(now, ev)
		u.Settle(now)
		return
	case c.end.terms.Unreliable && ev.Kind == falcon.EvPull: // the peer's queue pair is of another service
		c.end.pipe.NackPush(now, ev.RSN, falconwire.NackCID, 0, 0)
		return
	}
	switch ev.Kind {
	case falcon.EvPush:
		c.target.handlePush(now, ev)
	case falcon.EvPull:
		c.target.handlePull(now, ev)
	case falcon.EvPushDone:
		c.initiator.pushDone(now, ev)
	case falcon.EvPullDone:
		c.initiator.pullDone(now, ev)
	case falcon.EvResponseDone:
		c.target.responseDone(ev.Tag)
	case falcon.EvRNR:
		c.initiator.peerNotReady(now, ev.Tag)
	case falcon.EvCredit:
		u.Unblocked(now)
	case falcon.EvLimit:
		c.end.fits = min(c.end.segment, max(wire.SegmentFor(ev.Length-wire.MaxDataHeaderLen), wire.MinSegment))
	case falcon.EvClosed:
		c.detach()
		u.Ended(now, completionStatus(falcon.CmplDeadConn, synNone), ev.Reason.String())
	}
	u.Settle(now)
}

// Fill implements User. It reads guest memory but changes no queue and writes no completion.
func (c *Conn) Fill(kind falcon.TxnKind, tag uint64, dst []byte) (int, error) {
	switch {
	case c.end.user == nil:
		return 0, errGone
	case kind == falcon.TxnPullData:
		return c.target.fillResponse(tag, dst)
	}
	return c.initiator.fillRequest(tag, dst)
}

// Forget implements transport.Conn. Falcon's answers to the requests are ignored from now on.
func (c *Conn) Forget() { c.initiator.forget() }

// Drain implements transport.Conn.
func (c *Conn) Drain(now falcon.Time) {
	c.detach()
	c.end.pipe.Drain(now)
}

// Close implements transport.Conn.
func (c *Conn) Close(now falcon.Time) {
	c.detach()
	c.end.pipe.Close(now)
}

// Abort implements transport.Conn.
func (c *Conn) Abort(now falcon.Time) {
	c.detach()
	c.end.pipe.Abort(now, falcon.CloseULP)
}

// detach separates the connection from its queue pair. Requests of the peer are refused from now
// on.
func (c *Conn) detach() {
	c.end.user = nil
	c.initiator.forget()
	c.target.pulls.drop()
}

// NoteConcluded implements User.
func (c *Conn) NoteConcluded(rsn uint32) { noteConcluded(c.end.account, c.ID(), rsn) }

func noteConcluded(a *transport.Account, conn, rsn uint32) {
	if a != nil && a.Trace != nil {
		a.Trace.Add(&trace.Event{Kind: trace.Concluded, Conn: conn, Index: rsn, Flags: trace.Loopback | trace.Responder})
	}
}

// Explain returns a text about an RDMA packet that the connection sent (out) or received: the queue
// pair and, if the packet is one of its requests or the response to one, the work request. It
// allocates memory; captures call it, the data path does not.
func (c *Conn) Explain(packet []byte, out bool) string {
	if !c.attached {
		return ""
	}
	text := fmt.Sprintf("QP %d", c.end.terms.QPN)
	h, err := wire.ParseRBTH(packet)
	if err != nil || wire.Opcodes[h.Opcode].Len == 0 {
		return text
	}
	text += fmt.Sprintf(", %s, SN %d", wire.Opcodes.Name(h.Opcode), h.SN)
	if response := h.Opcode.Info().Kind == ib.KindResponse; response == out {
		return text // it belongs to the peer's work
	}
	for _, s := range c.initiator.segments {
		if s != nil && s.sn == h.SN {
			return text + fmt.Sprintf(", WQE %d (wr_id %#x), bytes %d to %d", s.r.Index, s.r.WQE.WRID, s.offset, s.offset+s.length)
		}
	}
	return text
}

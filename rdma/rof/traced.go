package rof

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// What a connection notes of its packets while somebody traces its function. Callers look first
// whether there is a ring: nothing else of this is on the data path.

// traced reports whether the queue pair's requests are noted.
func (c *Conn) traced() bool { return c.account.Trace != nil && c.account.Trace.Wants(c.terms.QPN) }

// noteIssued notes the first packet of a request.
func (c *Conn) noteIssued(s *segment) {
	if c.traced() && s.offset == 0 {
		c.account.Trace.Add(&trace.Event{Kind: trace.Issued, Work: c.terms.QPN, Index: s.r.Index, Extra: s.sn})
	}
}

// noteFilled notes that the carrier takes a packet.
func (c *Conn) noteFilled(s *segment) {
	if !c.traced() {
		return
	}
	c.filled(&trace.Event{Kind: trace.Scheduled, Work: c.terms.QPN, Index: s.r.Index, Extra: s.sn})
}

// filled notes a packet that is sealed next, or stays inside the NIC.
func (c *Conn) filled(e *trace.Event) {
	if c.inside() {
		e.Flags |= trace.Loopback
		c.account.Trace.Add(e)
		return
	}
	c.account.Trace.Filled(e)
}

// noteAcked notes the end of a packet.
func (c *Conn) noteAcked(s *segment) {
	if c.traced() {
		c.account.Trace.Add(&trace.Event{Kind: trace.Acked, Work: c.terms.QPN, Index: s.r.Index, Extra: s.sn})
	}
}

// noteDelivered notes that a packet of the peer was carried out.
func (c *Conn) noteDelivered(rsn uint32, op wire.Opcode, length uint32, flags uint8) {
	if !c.traced() {
		return
	}
	if c.inside() {
		flags |= trace.Loopback
	}
	c.account.Trace.Add(&trace.Event{
		Kind: trace.Delivered, Conn: c.ID(), Index: rsn, Op: uint8(op), Arg: uint64(c.terms.QPN), Extra: length, Flags: flags,
	})
}

// noteResponse notes a step of the response to a pull.
func (c *Conn) noteResponse(kind trace.Kind, s *served) {
	if !c.traced() {
		return
	}
	e := trace.Event{Kind: kind, Conn: c.ID(), Index: s.rsn, Extra: s.sn, Flags: trace.Responder}
	if kind == trace.Scheduled && !c.inside() {
		c.account.Trace.Filled(&e)
		return
	}
	c.account.Trace.Add(&e)
}

// noteFilled notes that the carrier takes a datagram.
func (c *Datagrams) noteFilled(d *transport.Datagram) {
	t := c.account.Trace
	if !t.Wants(d.From) {
		return
	}
	e := trace.Event{Kind: trace.Scheduled, Work: d.From, Index: d.Work, Extra: d.Serial}
	if c.inside() {
		e.Flags = trace.Loopback
		t.Add(&e)
	} else {
		t.Filled(&e)
	}
}

// inside reports whether the connection does not leave the NIC.
func (c *Datagrams) inside() bool {
	_, over := c.carrier.(*falcon.Conn)
	return !over
}

// NoteDelivered implements transport.DatagramConn.
func (c *Datagrams) NoteDelivered(d *transport.Datagram, id uint32) {
	e := trace.Event{
		Kind: trace.Delivered, Conn: c.ID(), Index: id, Op: uint8(datagramOpcode(d)), Arg: uint64(d.To), Extra: uint32(d.Length),
		Flags: trace.Wanted,
	}
	if c.inside() {
		e.Flags |= trace.Loopback
	}
	c.account.Trace.Add(&e)
}

// NoteConcluded implements User: what another connection inside the NIC sent here is answered.
func (c *Conn) NoteConcluded(rsn uint32) { noteConcluded(c.account, c.ID(), rsn) }

// NoteConcluded implements User.
func (c *Datagrams) NoteConcluded(rsn uint32) { noteConcluded(c.account, c.ID(), rsn) }

func noteConcluded(a *transport.Account, conn, rsn uint32) {
	if a != nil && a.Trace != nil {
		a.Trace.Add(&trace.Event{Kind: trace.Concluded, Conn: conn, Index: rsn, Flags: trace.Loopback | trace.Responder})
	}
}

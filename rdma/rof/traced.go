package rof

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// Events that a connection records while its function is traced. Callers first check whether there
// is a ring; tracing costs the data path nothing else.

// noteIssued records the first packet of a request.
func (i *initiator) noteIssued(s *segment) {
	if i.traced() && s.offset == 0 {
		i.account.Trace.Add(&trace.Event{Kind: trace.Issued, Work: i.terms.QPN, Index: s.r.Index, Extra: s.sn})
	}
}

// noteFilled records that the carrier takes a packet.
func (i *initiator) noteFilled(s *segment) {
	if !i.traced() {
		return
	}
	i.filled(&trace.Event{Kind: trace.Scheduled, Work: i.terms.QPN, Index: s.r.Index, Extra: s.sn})
}

// noteAcked records the end of a packet.
func (i *initiator) noteAcked(s *segment) {
	if i.traced() {
		i.account.Trace.Add(&trace.Event{Kind: trace.Acked, Work: i.terms.QPN, Index: s.r.Index, Extra: s.sn})
	}
}

// noteDelivered records that a packet of the peer was carried out.
func (t *target) noteDelivered(rsn uint32, op wire.Opcode, length uint32, flags uint8) {
	if !t.traced() {
		return
	}
	if t.inside() {
		flags |= trace.Loopback
	}
	t.account.Trace.Add(&trace.Event{
		Kind: trace.Delivered, Conn: t.id(), Index: rsn, Op: uint8(op), Arg: uint64(t.terms.QPN), Extra: length, Flags: flags,
	})
}

// noteResponse records a step of the response to a pull.
func (t *target) noteResponse(kind trace.Kind, s *served) {
	if !t.traced() {
		return
	}
	e := trace.Event{Kind: kind, Conn: t.id(), Index: s.rsn, Extra: s.sn, Flags: trace.Responder}
	if kind == trace.Scheduled && !t.inside() {
		t.account.Trace.Filled(&e)
		return
	}
	t.account.Trace.Add(&e)
}

// noteFilled records that the carrier takes a datagram.
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

// inside reports whether the connection is inside the NIC.
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

// NoteConcluded implements User: it records that a request from another connection inside the NIC
// was answered.
func (c *Conn) NoteConcluded(rsn uint32) { noteConcluded(c.account, c.ID(), rsn) }

// NoteConcluded implements User.
func (c *Datagrams) NoteConcluded(rsn uint32) { noteConcluded(c.account, c.ID(), rsn) }

func noteConcluded(a *transport.Account, conn, rsn uint32) {
	if a != nil && a.Trace != nil {
		a.Trace.Add(&trace.Event{Kind: trace.Concluded, Conn: conn, Index: rsn, Flags: trace.Loopback | trace.Responder})
	}
}

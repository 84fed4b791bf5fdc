package rdma

import (
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// What a function notes of its requests while somebody traces it. Callers look first whether there
// is a ring: nothing else of this is on the data path.

// UseTrace makes the function note in r what happens to its requests; nil: nothing any more.
func (f *Function) UseTrace(r *trace.Ring) { f.Trace = r }

// traced reports whether the QP's requests are noted.
func (q *QP) traced() bool { return q.fn.Trace != nil && q.fn.Trace.Wants(q.number) }

// noteEntries notes that entries of the send queue up to index are there.
func (q *QP) noteEntries(kind trace.Kind, index uint32) {
	if q.traced() {
		q.fn.Trace.Add(&trace.Event{Kind: kind, Work: q.number, Index: index})
	}
}

// noteRead notes that w was read.
func (q *QP) noteRead(w *work) {
	if q.traced() {
		q.fn.Trace.Add(&trace.Event{Kind: trace.Read, Work: q.number, Index: w.index, Op: uint8(w.wqe.Opcode), Arg: w.wqe.WRID, Extra: w.length})
	}
}

// noteIssued notes the first packet of w.
func (q *QP) noteIssued(w *work, s *segment) {
	if q.traced() && s.offset == 0 {
		q.fn.Trace.Add(&trace.Event{Kind: trace.Issued, Work: q.number, Index: w.index, Extra: s.sn})
	}
}

// noteFilled notes that the transport takes a packet of w.
func (q *QP) noteFilled(w *work, s *segment) {
	if !q.traced() {
		return
	}
	e := trace.Event{Kind: trace.Scheduled, Work: q.number, Index: w.index, Extra: s.sn}
	if _, inside := q.conn.(*Loopback); inside {
		e.Flags = trace.Loopback
		q.fn.Trace.Add(&e)
		return
	}
	q.fn.Trace.Filled(&e)
}

// note notes a step of a datagram.
func (d *datagram) note(f *Function, kind trace.Kind, flags uint8) {
	if f.Trace.Wants(d.deth.SourceQP) {
		f.Trace.Add(&trace.Event{Kind: kind, Work: d.deth.SourceQP, Index: d.work, Extra: d.sn, Flags: flags})
	}
}

// noteFilled notes that the transport takes a datagram.
func (d *datagram) noteFilled(l *Link) {
	if _, inside := l.conn.(*Loopback); inside {
		d.note(l.f, trace.Scheduled, trace.Loopback)
	} else if l.f.Trace.Wants(d.deth.SourceQP) {
		l.f.Trace.Filled(&trace.Event{Kind: trace.Scheduled, Work: d.deth.SourceQP, Index: d.work, Extra: d.sn})
	}
}

// noteAcked notes the end of a packet of w.
func (q *QP) noteAcked(w *work, s *segment) {
	if q.traced() {
		q.fn.Trace.Add(&trace.Event{Kind: trace.Acked, Work: q.number, Index: w.index, Extra: s.sn})
	}
}

// noteCompleting says that the CQE of w is next.
func (q *QP) noteCompleting(w *work) {
	if q.traced() {
		q.fn.Trace.Completing(&trace.Event{Kind: trace.Completed, Work: q.number, Index: w.index})
	}
}

// noteSilent notes that w is complete and gets no CQE.
func (q *QP) noteSilent(w *work) {
	if q.traced() {
		q.fn.Trace.Add(&trace.Event{Kind: trace.Completed, Work: q.number, Index: w.index, Flags: trace.Silent})
	}
}

// noteDelivered notes that a packet of the peer was carried out.
func (q *QP) noteDelivered(t transport, rsn uint32, op wire.Opcode, length uint32, flags uint8) {
	if !q.traced() {
		return
	}
	e := trace.Event{Kind: trace.Delivered, Conn: cidOf(t), Index: rsn, Op: uint8(op), Arg: uint64(q.number), Extra: length, Flags: flags}
	if _, inside := t.(*Loopback); inside {
		e.Flags |= trace.Loopback
	}
	q.fn.Trace.Add(&e)
}

// noteReceiving says that the next CQE is for the receive of a packet.
func (q *QP) noteReceiving(t transport, rsn uint32) {
	if q.traced() {
		q.fn.Trace.Completing(&trace.Event{Kind: trace.Completed, Conn: cidOf(t), Index: rsn, Flags: trace.Responder})
	}
}

// noteResponse notes a step of the response to a pull.
func (q *QP) noteResponse(kind trace.Kind, s *served) {
	if !q.traced() {
		return
	}
	e := trace.Event{Kind: kind, Conn: cidOf(q.conn), Index: s.rsn, Extra: s.sn, Flags: trace.Responder}
	if _, inside := q.conn.(*Loopback); !inside && kind == trace.Scheduled {
		q.fn.Trace.Filled(&e)
		return
	}
	q.fn.Trace.Add(&e)
}

// noteConcluded notes that what another QP of the NIC sent here is answered.
func (l *Loopback) noteConcluded(rsn uint32) {
	var f *Function
	switch u := l.owner.(type) {
	case *QP:
		f = u.fn
	case *Link:
		f = u.f
	}
	if f != nil && f.Trace != nil {
		f.Trace.Add(&trace.Event{Kind: trace.Concluded, Conn: l.cfg.LocalCID, Index: rsn, Flags: trace.Loopback | trace.Responder})
	}
}

// cidOf is the connection identifier of this end of t.
func cidOf(t transport) uint32 {
	switch c := t.(type) {
	case interface{ LocalCID() uint32 }:
		return c.LocalCID()
	case *Loopback:
		return c.cfg.LocalCID
	}
	return 0
}

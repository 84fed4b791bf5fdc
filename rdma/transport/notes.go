package transport

import "github.com/falcon-vnic/vnic/rdma/trace"

// Notes records in the function's trace what happens to the packets of a connection. Callers ask On
// first; while the function is not traced, that is all it costs.
type Notes struct {
	Account *Account
	QPN     uint32 // of this end's queue pair
	Conn    uint32 // number of the connection
	Wire    uint8  // number of the wire in traces
	Flags   uint8  // of all events: trace.Loopback
}

// On reports whether the queue pair's requests are traced.
func (n *Notes) On() bool { return n.Account.Trace != nil && n.Account.Trace.Wants(n.QPN) }

// Request records a step of the packet of r with that sequence number: trace.Issued, of the first
// packet only, trace.Scheduled or trace.Acked.
func (n *Notes) Request(kind trace.Kind, r *Request, number uint32) {
	n.Account.note(&trace.Event{Kind: kind, Work: n.QPN, Index: r.Index, Extra: number, Flags: n.Flags, Wire: n.Wire})
}

// Response records a step of the packet with that number, of the response to the peer's request id.
func (n *Notes) Response(kind trace.Kind, id, number uint32) {
	n.Account.note(&trace.Event{Kind: kind, Conn: n.Conn, Index: id, Extra: number, Flags: n.Flags | trace.Responder})
}

// Delivered records that the packet id of the peer was carried out. flags says what follows.
func (n *Notes) Delivered(id uint32, opcode uint8, length uint32, flags uint8) {
	n.Account.note(&trace.Event{
		Kind: trace.Delivered, Conn: n.Conn, Index: id, Op: opcode, Arg: uint64(n.QPN), Extra: length, Flags: n.Flags | flags, Wire: n.Wire,
	})
}

// NoteDatagram records a step of a datagram that is sent, if its queue pair is traced. wire is the
// number of the wire in traces.
func (a *Account) NoteDatagram(kind trace.Kind, d *Datagram, wire, flags uint8) {
	if a.Trace != nil && a.Trace.Wants(d.From) {
		a.note(&trace.Event{Kind: kind, Work: d.From, Index: d.Work, Extra: d.Serial, Wire: wire, Flags: flags})
	}
}

// note adds an event. A packet that is scheduled is sealed next, unless it stays inside the NIC.
func (a *Account) note(e *trace.Event) {
	if e.Kind == trace.Scheduled && e.Flags&trace.Loopback == 0 {
		a.Trace.Filled(e)
	} else {
		a.Trace.Add(e)
	}
}

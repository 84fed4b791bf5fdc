package verbs

import "github.com/falcon-vnic/vnic/rdma/trace"

// Events that a function records while its requests are traced. Callers first check whether there
// is a ring; tracing costs the data path nothing else.

// UseTrace makes the function record the events of its requests in r; nil stops it.
func (o *Owner) UseTrace(r *trace.Ring) { o.Trace = r }

// traces reports whether the requests of a QP are recorded.
func (o *Owner) traces(qpn uint32) bool { return o.Trace != nil && o.Trace.Wants(qpn) }

// noteEntries records that entries of the send queue up to index are available.
func (s *requester) noteEntries(kind trace.Kind, index uint32) {
	q := s.q
	if q.owner.traces(q.number) {
		q.owner.Trace.Add(&trace.Event{Kind: kind, Work: q.number, Index: index})
	}
}

// noteRead records that w was read.
func (s *requester) noteRead(w *SendWR) {
	q := s.q
	if q.owner.traces(q.number) {
		q.owner.Trace.Add(&trace.Event{Kind: trace.Read, Work: q.number, Index: w.Index, Op: uint8(w.WQE.Opcode), Arg: w.WQE.WRID, Extra: w.Length})
	}
}

// noteCompleting announces that the next CQE is that of w.
func (s *requester) noteCompleting(w *SendWR) {
	q := s.q
	if q.owner.traces(q.number) {
		q.owner.Trace.Completing(&trace.Event{Kind: trace.Completed, Work: q.number, Index: w.Index})
	}
}

// noteSilent records that w is complete and gets no CQE.
func (s *requester) noteSilent(w *SendWR) {
	q := s.q
	if q.owner.traces(q.number) {
		q.owner.Trace.Add(&trace.Event{Kind: trace.Completed, Work: q.number, Index: w.Index, Flags: trace.Silent})
	}
}

// noteReceiving announces that the next CQE is for the receive of a packet of connection conn.
func (r *responder) noteReceiving(conn, id uint32) {
	q := r.q
	if q.owner.traces(q.number) {
		q.owner.Trace.Completing(&trace.Event{Kind: trace.Completed, Conn: conn, Index: id, Flags: trace.Responder})
	}
}

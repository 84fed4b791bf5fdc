package verbs

import "github.com/falcon-vnic/vnic/rdma/trace"

// What a function notes of its requests while somebody traces it. Callers look first whether there
// is a ring: nothing else of this is on the data path.

// UseTrace makes the function note in r what happens to its requests; nil: nothing any more.
func (o *Owner) UseTrace(r *trace.Ring) { o.Trace = r }

// traces reports whether the requests of a QP are noted.
func (o *Owner) traces(qpn uint32) bool { return o.Trace != nil && o.Trace.Wants(qpn) }

// noteEntries notes that entries of the send queue up to index are there.
func (s *requester) noteEntries(kind trace.Kind, index uint32) {
	q := s.q
	if q.owner.traces(q.number) {
		q.owner.Trace.Add(&trace.Event{Kind: kind, Work: q.number, Index: index})
	}
}

// noteRead notes that w was read.
func (s *requester) noteRead(w *SendWR) {
	q := s.q
	if q.owner.traces(q.number) {
		q.owner.Trace.Add(&trace.Event{Kind: trace.Read, Work: q.number, Index: w.Index, Op: uint8(w.WQE.Opcode), Arg: w.WQE.WRID, Extra: w.Length})
	}
}

// noteCompleting says that the CQE of w is next.
func (s *requester) noteCompleting(w *SendWR) {
	q := s.q
	if q.owner.traces(q.number) {
		q.owner.Trace.Completing(&trace.Event{Kind: trace.Completed, Work: q.number, Index: w.Index})
	}
}

// noteSilent notes that w is complete and gets no CQE.
func (s *requester) noteSilent(w *SendWR) {
	q := s.q
	if q.owner.traces(q.number) {
		q.owner.Trace.Add(&trace.Event{Kind: trace.Completed, Work: q.number, Index: w.Index, Flags: trace.Silent})
	}
}

// noteReceiving says that the next CQE is for the receive of a packet of connection conn.
func (r *responder) noteReceiving(conn, id uint32) {
	q := r.q
	if q.owner.traces(q.number) {
		q.owner.Trace.Completing(&trace.Event{Kind: trace.Completed, Conn: conn, Index: id, Flags: trace.Responder})
	}
}

package roce

import (
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Events that a port records while its function is traced. Callers first check whether there is a
// ring; tracing costs the data path nothing else.

// serial returns a PSN as traces compare it: shifted to the top of 32 bits, so that both wrap
// together.
func serial(psn wire.PSN) uint32 { return uint32(psn) << 8 }

// noteIssued records the first packet of a request.
func (s *requester) noteIssued(r *transport.Request, psn wire.PSN) {
	if s.traced() {
		s.account.Trace.Add(&trace.Event{Kind: trace.Issued, Work: s.terms.QPN, Index: r.Index, Extra: serial(psn), Flags: trace.RoCE})
	}
}

// noteRequest records that an entry is sent.
func (s *requester) noteRequest(e *entry) {
	if s.traced() {
		s.account.Trace.Filled(&trace.Event{Kind: trace.Scheduled, Work: s.terms.QPN, Index: e.r.Index, Extra: serial(e.psn)})
	}
}

// noteAnswered records that an entry was answered.
func (s *requester) noteAnswered(e *entry) {
	if s.traced() {
		s.account.Trace.Add(&trace.Event{Kind: trace.Acked, Work: s.terms.QPN, Index: e.r.Index, Extra: serial(e.psn)})
	}
}

// noteArrived records a request of the peer.
func (s *responder) noteArrived(psn wire.PSN) {
	if s.traced() {
		t := s.account.Trace
		t.Arrived(t.Now(), &trace.Event{Conn: s.terms.QPN, Index: uint32(psn), Extra: serial(psn)})
	}
}

// noteDelivered records that a request of the peer was carried out.
func (s *responder) noteDelivered(op wire.Opcode, psn wire.PSN, length int, flags uint8) {
	if s.traced() {
		s.account.Trace.Add(&trace.Event{
			Kind: trace.Delivered, Conn: s.terms.QPN, Index: uint32(psn), Op: uint8(op), Arg: uint64(s.terms.QPN), Extra: uint32(length), Flags: flags | trace.RoCE,
		})
	}
}

// noteTaken records a packet of an unreliable connection, which nobody answers.
func (s *responder) noteTaken(h *wire.Headers, length int, completes bool) {
	if !s.traced() {
		return
	}
	flags := uint8(0)
	if completes {
		flags = trace.Wanted
	}
	s.noteArrived(h.BTH.PSN)
	s.noteDelivered(h.BTH.Opcode, h.BTH.PSN, length, flags)
	s.account.Trace.Add(&trace.Event{Kind: trace.Gone, Conn: s.terms.QPN, Index: uint32(h.BTH.PSN), Flags: trace.Responder})
}

// noteAck records that everything before psn is acknowledged. The event follows when the current
// packet is sealed.
func (s *responder) noteAck(psn wire.PSN) {
	if s.traced() {
		s.port.behind = trace.Event{Kind: trace.Answered, Conn: s.terms.QPN, Index: serial(psn), Extra: serial(psn), Flags: trace.Responder}
	}
}

// noteResponse records that a packet of the response to the request with that PSN is sent. No more
// follow if it is the last.
func (s *responder) noteResponse(request, psn wire.PSN, last bool) {
	if !s.traced() {
		return
	}
	e := trace.Event{Kind: trace.Scheduled, Conn: s.terms.QPN, Index: uint32(request), Extra: serial(psn), Flags: trace.Responder}
	s.account.Trace.Filled(&e)
	if last {
		e.Kind = trace.Gone
		s.port.behind = e
	}
}

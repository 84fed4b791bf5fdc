package conn

import (
	"log/slog"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// close ends the connection at once and takes it out of its slot.
func (s *Slot) close(now falcon.Time) {
	if s.Loop != nil {
		s.Loop.Close(now)
	} else {
		s.Conn.Close(now)
	}
	s.clear()
}

// Close ends a connection that the connection manager has closed: the queue pair flushes, the
// transport ends what it still has under way.
func (t *Table) Close(now falcon.Time, id uint32, why cm.Reason) {
	s := t.ByID(id)
	delete(t.byID, id)
	if s == nil {
		return // the transport went first
	}
	u := s.user
	if s.Conn != nil {
		if u.QP != nil && parts(why) {
			t.partFor(now, s, u, why)
			return
		}
		if reason := closeReason(why); reason != falcon.CloseLocal {
			s.Conn.Abort(now, reason)
		}
	}
	if u.owns(s) {
		u.disconnect(now)
	}
	s.close(now)
}

// closeReason is the transport's word for the connection manager's.
func closeReason(r cm.Reason) falcon.CloseReason {
	switch r {
	case cm.ReasonNone, cm.ReasonLocal, cm.ReasonFunctionGone:
		return falcon.CloseLocal
	case cm.ReasonPeerRestarted: // with new keys
		return falcon.CloseKeys
	}
	return falcon.ClosePeer
}

// HandleEvent takes the transport's word of a connection. One that ended there, by an error or
// because its queue pair went, is told by NextEnded.
func (t *Table) HandleEvent(now falcon.Time, ev *falcon.Event) {
	s := t.Of(ev.Conn)
	if s == nil {
		return
	}
	switch ev.Kind {
	case falcon.EvClosed:
		t.closed(now, s, ev)
	case falcon.EvDrained:
		if s.parting {
			t.parted(now, s)
			return
		}
		t.drains.over = append(t.drains.over, drain{ev.Conn, s.ended(), 0})
	case falcon.EvLongPath:
		t.cfg.Log(now, slog.LevelWarn, "slow path", "function", s.Owner.Describe(), "peer", s.Peer, "why", LongPathNote(ev.Conn.Info()))
	}
}

func (t *Table) closed(now falcon.Time, s *Slot, ev *falcon.Event) {
	e, parting := s.ended(), s.parting
	if !parting && ev.Code != falcon.CmplAck {
		t.cfg.Log(now, slog.LevelWarn, "connection lost", "function", s.Owner.Describe(), "peer", s.Peer, "reason", ev.Reason.String())
	}
	s.clear()
	if !parting {
		t.ended = append(t.ended, e)
	}
}

// ended names the connection for the connection manager.
func (s *Slot) ended() Ended { return Ended{Function: uint32(s.Owner.ID), ID: s.ID, CID: s.CID} }

// NextEnded takes the oldest word that a connection has ended, by the transport or in the RDMA
// engine.
func (t *Table) NextEnded() (e Ended, ok bool) {
	if len(t.ended) > 0 {
		e = t.ended[0]
		t.ended = t.ended[:copy(t.ended, t.ended[1:])]
		return e, true
	}
	for cid, more := t.cfg.Loopbacks.NextClosed(); more; cid, more = t.cfg.Loopbacks.NextClosed() {
		if s := t.Find(cid); s != nil && s.Loop != nil { // else Close was first
			e = s.ended()
			s.clear()
			return e, true
		}
	}
	return e, false
}

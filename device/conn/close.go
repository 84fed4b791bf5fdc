package conn

import (
	"log/slog"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// Close ends a connection that the connection manager has closed: the queue pair flushes, and the
// transport finishes what is in flight.
func (t *Table) Close(now falcon.Time, id uint32, why cm.Reason) {
	s := t.ByID(id)
	delete(t.byID, id)
	switch {
	case s == nil:
		return // the transport ended it first
	case s.parts(why):
		t.partings.begin(now, s, why)
		return
	}
	if reason := closeReason(why); s.Conn != nil && reason != falcon.CloseLocal {
		s.Conn.Abort(now, reason)
	}
	if s.user.Owns() {
		s.user.Disconnect(now)
	}
	s.close(now)
}

// closeReason translates the connection manager's reason to the transport's.
func closeReason(r cm.Reason) falcon.CloseReason {
	switch r {
	case cm.ReasonNone, cm.ReasonLocal, cm.ReasonFunctionGone:
		return falcon.CloseLocal
	case cm.ReasonPeerRestarted: // with new keys
		return falcon.CloseKeys
	}
	return falcon.ClosePeer
}

// Drain starts an orderly end of a connection. It returns false if there is no transport to drain,
// or the connection drains already: then the connection manager must end it at once.
func (t *Table) Drain(now falcon.Time, of *Owner, id uint32) bool {
	s := t.ByID(id)
	if s == nil || s.Owner != of || s.Conn == nil || s.draining {
		return false
	}
	t.drains.begin(now, s)
	return true
}

// Draining reports whether EndDrains has connections to check.
func (t *Table) Draining() bool { return len(t.drains.waiting) > 0 }

// EndDrains ends connections that have drained, or have taken too long. NextEnded returns them.
func (t *Table) EndDrains(now falcon.Time) { t.ended = t.drains.end(now, t.ended) }

// EndPartings closes the connections whose parting time is over.
func (t *Table) EndPartings(now falcon.Time) { t.partings.end(now) }

// EndPartingsOf closes the parting connections of a function that is being reset.
func (t *Table) EndPartingsOf(now falcon.Time, of *Owner) { t.partings.endOf(now, of) }

// Deadline returns when EndDrains or EndPartings must next be called.
func (t *Table) Deadline() falcon.Time { return min(t.drains.deadline(), t.partings.deadline()) }

// HandleEvent handles a transport event of a connection. NextEnded returns a connection that ended
// there, by an error or because its queue pair ended.
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
			s.parted(now)
			return
		}
		t.drains.done(s)
	case falcon.EvLongPath:
		t.cfg.Log(now, slog.LevelWarn, "slow path", "function", s.Owner.Describe(), "peer", s.Peer, "why", LongPathNote(ev.Conn.Info()))
	}
}

func (t *Table) closed(now falcon.Time, s *Slot, ev *falcon.Event) {
	if !s.parting {
		t.ended = append(t.ended, s.ended())
		if ev.Code != falcon.CmplAck {
			t.cfg.Log(now, slog.LevelWarn, "connection lost", "function", s.Owner.Describe(), "peer", s.Peer, "reason", ev.Reason.String())
		}
	}
	s.clear()
}

// NextEnded removes and returns the oldest connection that was ended by the transport or in the
// RDMA engine.
func (t *Table) NextEnded() (e Ended, ok bool) {
	if len(t.ended) > 0 {
		e = t.ended[0]
		t.ended = t.ended[:copy(t.ended, t.ended[1:])]
		return e, true
	}
	for cid, more := t.cfg.Loopbacks.NextClosed(); more; cid, more = t.cfg.Loopbacks.NextClosed() {
		if s := t.Find(cid); s != nil && s.Loop != nil { // else Close came first
			e = s.ended()
			s.clear()
			return e, true
		}
	}
	return e, false
}

package conn

import (
	"log/slog"
	"slices"
	"time"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/vtime"
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
	case cm.ReasonPeerRestarted, cm.ReasonPeerRemoved: // its keys are gone
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
		t.cfg.Log(now, slog.LevelWarn, "slow path", "function", s.Owner.Describe(), "peer", s.PeerName, "why", LongPathNote(ev.Conn.Info()))
	}
}

func (t *Table) closed(now falcon.Time, s *Slot, ev *falcon.Event) {
	if !s.parting {
		t.ended = append(t.ended, s.ended())
		if ev.Code != falcon.CmplAck {
			t.cfg.Log(now, slog.LevelWarn, "connection lost", "function", s.Owner.Describe(), "peer", s.PeerName, "reason", ev.Reason.String())
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

// DrainMost bounds how long a disconnect waits for work in flight at its own queue pair and the
// peer's.
const DrainMost = falcon.Time(time.Second)

// drain is a connection that its driver has disconnected and that finishes its work in flight:
// requests that the transport accepted complete, the peer gets its acknowledgements, and no new
// work starts. Then the connection manager ends it.
type drain struct {
	conn  *falcon.Conn
	end   Ended
	until falcon.Time
}

// drains holds the draining connections of a shard.
type drains struct {
	waiting []drain // in order of until; some have ended meanwhile
	over    []drain // to be disconnected
}

// begin starts draining the connection in s.
func (d *drains) begin(now falcon.Time, s *Slot) {
	s.draining = true
	d.waiting = append(d.waiting, drain{s.Conn, s.ended(), now + DrainMost})
	s.Conn.Drain(now)
}

// done records that the connection in s has no work in flight.
func (d *drains) done(s *Slot) { d.over = append(d.over, drain{conn: s.Conn, end: s.ended()}) }

// end appends to list the connections that have drained, or have taken too long.
func (d *drains) end(now falcon.Time, list []Ended) []Ended {
	for len(d.waiting) > 0 && (d.waiting[0].conn.Closed() || d.waiting[0].until <= now) {
		d.over = append(d.over, d.waiting[0])
		d.waiting = d.waiting[1:]
	}
	for _, o := range d.over {
		if !o.conn.Closed() {
			list = append(list, o.end)
		}
	}
	clear(d.over)
	d.over = d.over[:0]
	return list
}

func (d *drains) deadline() falcon.Time {
	if len(d.waiting) == 0 {
		return vtime.Never
	}
	return d.waiting[0].until
}

// PartTime is how long the transport's end of a connection stays after a driver has ended the
// connection. It is less than the time for which the connection manager keeps the CID.
const PartTime = falcon.Time(time.Second)

// A connection that one of the drivers ends (CMDisconnect, DestroyQP, ModifyQP to RESET or ERR)
// parts: it closes in order, so that work that was delivered does not fail because the last
// acknowledgement was lost.
//
//	side that ended it                           peer
//	releases its queue pair ── DREQ ───────────▶ starts no new work
//	acknowledges packets, repeated ones too ◀─── repeats packets that are not acknowledged
//	refuses other packets ─────────────────────▶ flushes, when no work is in flight any more
//	closes after PartTime                        closes
type parting struct {
	conn  *falcon.Conn
	slot  *Slot // of conn, while that is not closed
	owner *Owner
	until falcon.Time
}

// partings holds the parting connections of a shard, in order of until.
type partings struct{ waiting []parting }

// parts reports whether a connection that ends for this reason parts.
func (s *Slot) parts(r cm.Reason) bool {
	return s.Conn != nil && s.user.Parts() && (r == cm.ReasonLocal || r == cm.ReasonDisconnect)
}

// begin starts the parting of the connection in s. On the side that ended it, the queue pair
// releases the connection at once. On the peer's side it keeps the connection until the parting is
// over.
func (p *partings) begin(now falcon.Time, s *Slot, why cm.Reason) {
	if s.user.Owns() {
		if why == cm.ReasonLocal {
			s.user.Disconnect(now)
		} else {
			s.leaving = true
			s.user.PeerLeaves()
		}
	}
	s.parting = true
	p.waiting = append(p.waiting, parting{s.Conn, s, s.Owner, now + PartTime})
	s.Conn.Drain(now)
}

// parted handles the transport's event that a parting connection has no work in flight. The side
// that ended it continues to acknowledge.
func (s *Slot) parted(now falcon.Time) {
	if s.leaving {
		s.endParting(now)
	}
}

func (s *Slot) endParting(now falcon.Time) {
	if !s.leaving {
		s.close(now)
		return
	}
	if s.user.Owns() {
		s.user.Disconnect(now)
	}
	s.Conn.Abort(now, falcon.ClosePeer)
	s.clear()
}

// end closes the connection if it is still open.
func (p *parting) end(now falcon.Time) {
	if !p.conn.Closed() && p.slot.Conn == p.conn {
		p.slot.endParting(now)
	}
}

// end closes the connections whose time is over.
func (p *partings) end(now falcon.Time) {
	w, n := p.waiting, 0
	for ; n < len(w) && (w[n].until <= now || w[n].conn.Closed()); n++ {
		w[n].end(now)
	}
	p.waiting = slices.Delete(w, 0, n)
}

// endOf closes the parting connections of a function.
func (p *partings) endOf(now falcon.Time, of *Owner) {
	for i := range p.waiting {
		if w := &p.waiting[i]; w.owner == of {
			w.end(now)
		}
	}
}

func (p *partings) deadline() falcon.Time {
	if len(p.waiting) == 0 {
		return vtime.Never
	}
	return p.waiting[0].until
}

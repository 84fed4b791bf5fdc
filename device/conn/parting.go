package conn

import (
	"time"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// PartTime is how long the transport's end of a connection outlives the word of a driver that ended
// it. It is less than the time for which the connection manager keeps the connection's identifier.
const PartTime = falcon.Time(time.Second)

// A connection that one of the drivers ends (CMDisconnect, DestroyQP, ModifyQP to RESET or ERR)
// parts in peace: what was delivered does not fail because the last acknowledgement was lost.
//
//	side that ended it                           peer
//	queue pair lets go ── DREQ ────────────────▶ begins nothing new
//	acknowledges what came, also again ◀──────── sends again what is not acknowledged
//	refuses the rest ──────────────────────────▶ flushes, when nothing is under way any more
//	closes after PartTime                        closes
type parting struct {
	conn  *falcon.Conn
	owner *Owner
	until falcon.Time
}

// parts reports whether a connection that ends for a reason parts in peace.
func parts(r cm.Reason) bool { return r == cm.ReasonLocal || r == cm.ReasonDisconnect }

// partFor begins to part for the reason. The queue pair of the side that ends it lets go at once; on
// the peer's side it has the connection until it is over.
func (t *Table) partFor(now falcon.Time, s *Slot, u User, why cm.Reason) {
	if u.owns(s) {
		if why == cm.ReasonLocal {
			u.disconnect(now)
		} else {
			s.leaving = u.QP
			u.QP.PeerLeaves()
		}
	}
	s.parting = true
	t.partings = append(t.partings, parting{s.Conn, s.Owner, now + PartTime})
	s.Conn.Drain(now)
}

// parted takes the transport's word that a connection that parts has nothing under way. The side
// that ended it goes on acknowledging.
func (t *Table) parted(now falcon.Time, s *Slot) {
	if s.leaving != nil {
		s.endParting(now)
	}
}

func (s *Slot) endParting(now falcon.Time) {
	if s.leaving == nil {
		s.close(now)
		return
	}
	if u := (User{QP: s.leaving}); u.owns(s) {
		u.disconnect(now)
	}
	s.Conn.Abort(now, falcon.ClosePeer)
	s.clear()
}

// end closes the connection, if it is still there.
func (p *parting) end(now falcon.Time, t *Table) {
	if p.conn.Closed() {
		return
	}
	if s := t.Of(p.conn); s != nil {
		s.endParting(now)
	}
}

// EndPartings closes the connections whose time is over.
func (t *Table) EndPartings(now falcon.Time) {
	w := t.partings
	n := 0
	for ; n < len(w) && (w[n].until <= now || w[n].conn.Closed()); n++ {
		w[n].end(now, t)
	}
	if n > 0 {
		left := copy(w, w[n:])
		clear(w[left:])
		t.partings = w[:left]
	}
}

// EndPartingsOf closes those of a function, which is reset.
func (t *Table) EndPartingsOf(now falcon.Time, of *Owner) {
	for i := range t.partings {
		if p := &t.partings[i]; p.owner == of {
			p.end(now, t)
		}
	}
}

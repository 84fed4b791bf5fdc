package conn

import (
	"slices"
	"time"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

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

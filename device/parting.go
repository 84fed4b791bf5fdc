package device

import (
	"time"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/rdma"
)

// partTime is how long the transport's end of a connection outlives the word of
// a driver that ended it. It is less than the time for which the connection
// manager keeps the connection's identifier.
const partTime = falcon.Time(time.Second)

// A connection that one of the drivers ends (CMDisconnect, DestroyQP, ModifyQP
// to RESET or ERR) parts in peace: what was delivered does not fail because the
// last acknowledgement was lost.
//
//	side that ended it                           peer
//	queue pair lets go ── DREQ ────────────────▶ begins nothing new
//	acknowledges what came, also again ◀──────── sends again what is not acknowledged
//	refuses the rest ──────────────────────────▶ flushes, when nothing is under way any more
//	closes after partTime                        closes
type parting struct {
	conn  *falcon.Conn
	f     *function
	qp    *rdma.QP // of the peer's side: it has the connection still
	until falcon.Time
}

// partings are those of a shard, the first one due first.
type partings struct{ waiting []parting }

// parts reports whether a connection that ends for a reason parts in peace.
func parts(r cm.Reason) bool { return r == cm.ReasonLocal || r == cm.ReasonDisconnect }

// part lets both ends finish what is under way. qp has to be told when this
// side has; nil if it has let go.
func (s *Shard) part(now falcon.Time, c *slot, qp *rdma.QP) {
	c.parting = true
	s.partings.waiting = append(s.partings.waiting, parting{c.conn, c.fn, qp, now + partTime})
	if qp != nil {
		qp.PeerLeaves()
	}
	c.conn.Drain(now)
}

// parted takes the transport's word that a connection that parts has nothing
// under way. The side that ended it goes on acknowledging.
func (s *Shard) parted(now falcon.Time, c *slot) {
	for i := range s.partings.waiting {
		if p := &s.partings.waiting[i]; p.conn == c.conn && p.qp != nil {
			s.endParting(now, p)
			return
		}
	}
}

// endParting closes the connection, if it is still there.
func (s *Shard) endParting(now falcon.Time, p *parting) {
	if p.conn.Closed() {
		return
	}
	if p.qp != nil && p.qp.Owns(p.conn) {
		disconnected(now, p.qp)
	}
	if p.qp != nil {
		p.conn.Abort(now, falcon.ClosePeer)
	} else {
		p.conn.Close(now)
	}
	if c := s.slots.open(p.conn.LocalCID()); c != nil && c.conn == p.conn {
		c.close()
	}
}

// endPartings closes the connections whose time is over.
func (s *Shard) endPartings(now falcon.Time) {
	w := s.partings.waiting
	n := 0
	for ; n < len(w) && (w[n].until <= now || w[n].conn.Closed()); n++ {
		s.endParting(now, &w[n])
	}
	if n > 0 {
		left := copy(w, w[n:])
		clear(w[left:])
		s.partings.waiting = w[:left]
	}
}

// endPartingsOf closes those of a function, which is reset.
func (s *Shard) endPartingsOf(now falcon.Time, f *function) {
	for i := range s.partings.waiting {
		if p := &s.partings.waiting[i]; p.f == f {
			s.endParting(now, p)
		}
	}
}

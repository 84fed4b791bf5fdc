package device

import (
	"time"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// drainMost bounds how long a driver that disconnects waits for what its queue
// pair and the peer's have under way.
const drainMost = falcon.Time(time.Second)

// drain is a connection whose driver has disconnected it and that finishes what
// it has under way: requests that the transport took complete, the peer gets
// its acknowledgements, and nothing new begins. Then the connection manager
// ends it.
type drain struct {
	conn  *falcon.Conn
	f     *function
	id    uint32 // connection manager's
	until falcon.Time
}

// drains are those of a shard.
type drains struct {
	waiting []drain // the first is the first whose time is up; some have ended meanwhile
	over    []drain // to be disconnected
}

// disconnect ends a connection in order. Asked a second time, or if there is no
// transport to drain, it does so at once.
func (f *function) disconnect(now falcon.Time, id uint32) abi.Status {
	s := f.shard
	if c := s.slots.find(s.open[id]); c != nil && c.id == id && c.fn == f && c.conn != nil && !c.draining {
		c.draining = true
		s.drains.waiting = append(s.drains.waiting, drain{c.conn, f, id, now + drainMost})
		c.conn.Drain(now)
		return abi.StatusOK
	}
	return cmStatus(s.cm.Disconnect(now, uint32(f.ID), id))
}

// drained takes the transport's word that a connection has nothing under way.
func (s *Shard) drained(now falcon.Time, conn *falcon.Conn) {
	switch c := s.slots.open(conn.LocalCID()); {
	case c == nil || c.conn != conn:
	case c.parting:
		s.parted(now, c)
	default:
		s.drains.over = append(s.drains.over, drain{conn: conn, f: c.fn, id: c.id})
	}
}

// endDrains disconnects what has drained, and what takes too long.
func (s *Shard) endDrains(now falcon.Time) {
	d := &s.drains
	if len(d.waiting) == 0 {
		return
	}
	s.drainFalcon(now) // the last acknowledgement may just have left
	for len(d.waiting) > 0 && (d.waiting[0].conn.Closed() || d.waiting[0].until <= now) {
		d.over = append(d.over, d.waiting[0])
		d.waiting = d.waiting[1:]
	}
	for _, o := range d.over {
		if !o.conn.Closed() {
			_ = s.cm.Disconnect(now, uint32(o.f.ID), o.id)
			s.drainManager(now)
		}
	}
	clear(d.over)
	d.over = d.over[:0]
}

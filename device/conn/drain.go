package conn

import (
	"time"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// DrainMost bounds how long a driver that disconnects waits for what its queue pair and the peer's
// have under way.
const DrainMost = falcon.Time(time.Second)

// drain is a connection whose driver has disconnected it and that finishes what it has under way:
// requests that the transport took complete, the peer gets its acknowledgements, and nothing new
// begins. Then the connection manager ends it.
type drain struct {
	conn  *falcon.Conn
	end   Ended
	until falcon.Time
}

// drains are those of a shard.
type drains struct {
	waiting []drain // the first is the first whose time is up; some have ended meanwhile
	over    []drain // to be disconnected
}

// begin has the connection in s finish.
func (d *drains) begin(now falcon.Time, s *Slot) {
	s.draining = true
	d.waiting = append(d.waiting, drain{s.Conn, s.ended(), now + DrainMost})
	s.Conn.Drain(now)
}

// done takes the transport's word that the connection in s has nothing under way.
func (d *drains) done(s *Slot) { d.over = append(d.over, drain{conn: s.Conn, end: s.ended()}) }

// end appends to list what is done, or takes too long.
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

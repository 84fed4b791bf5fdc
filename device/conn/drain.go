package conn

import (
	"time"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

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

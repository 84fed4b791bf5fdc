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

// Drain begins to end a connection in order. It reports false if there is no transport to drain, or
// it drains already: then the connection manager has to end it at once.
func (t *Table) Drain(now falcon.Time, of *Owner, id uint32) bool {
	s := t.ByID(id)
	if s == nil || s.Owner != of || s.Conn == nil || s.draining {
		return false
	}
	s.draining = true
	t.drains.waiting = append(t.drains.waiting, drain{s.Conn, s.ended(), now + DrainMost})
	s.Conn.Drain(now)
	return true
}

// Draining reports whether there is something for EndDrains to look at.
func (t *Table) Draining() bool { return len(t.drains.waiting) > 0 }

// EndDrains ends what has drained, and what takes too long: NextEnded tells which.
func (t *Table) EndDrains(now falcon.Time) {
	d := &t.drains
	if len(d.waiting) == 0 {
		return
	}
	for len(d.waiting) > 0 && (d.waiting[0].conn.Closed() || d.waiting[0].until <= now) {
		d.over = append(d.over, d.waiting[0])
		d.waiting = d.waiting[1:]
	}
	for _, o := range d.over {
		if !o.conn.Closed() {
			t.ended = append(t.ended, o.end)
		}
	}
	clear(d.over)
	d.over = d.over[:0]
}

// Deadline is when EndDrains or EndPartings has something to do next.
func (t *Table) Deadline() falcon.Time {
	at := vtime.Never
	if w := t.drains.waiting; len(w) > 0 {
		at = w[0].until
	}
	if len(t.partings) > 0 {
		at = min(at, t.partings[0].until)
	}
	return at
}

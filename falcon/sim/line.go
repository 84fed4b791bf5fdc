package sim

import "github.com/falcon-vnic/vnic/falcon"

// line is one direction of a running link.
type line struct {
	net       *Network
	cfg       LinkConfig
	index     int       // in Network.lines
	arrival   eventKind // at the other end
	seed      uint64
	frames    uint64 // sent
	bad       bool   // the state of Burst
	busy      int64  // until when the line is busy, picoseconds
	held      []*packet
	expecting bool // a holdOver event is scheduled
}

// occupy reserves the line for a frame of size bytes, and returns when its last bit leaves, in
// picoseconds.
func (l *line) occupy(size int) int64 {
	l.busy = max(l.busy, l.net.Now*picos) + int64(float64(size)*8e12/float64(l.cfg.Rate))
	return l.busy
}

// send sends a frame that has occupied the line. A frame that is held back is sent right after the
// frame that is a random number of positions later, so at most ReorderBy frames overtake it. If no
// frame follows for a round trip, it is sent alone.
func (l *line) send(p *packet) {
	index := l.frames
	l.frames++
	switch {
	case l.loses(index):
		l.net.lost(p)
	case happens(l.seed, index, drawReorder, l.cfg.Reorder):
		p.release = index + 1 + uint64(draw(l.seed, index, drawJitter)*float64(l.cfg.ReorderBy))
		l.held = append(l.held, p)
		l.expectIdle()
	default:
		l.fly(p)
		if happens(l.seed, index, drawDuplicate, l.cfg.Duplicate) {
			l.fly(l.net.packets.copy(p))
		}
	}
	kept := l.held[:0]
	for _, q := range l.held {
		if q.release <= index {
			l.fly(q)
		} else {
			kept = append(kept, q)
		}
	}
	l.held = kept
}

// loses decides whether the frame with that index is lost.
func (l *line) loses(index uint64) bool {
	f := &l.cfg.Faults
	if f.Outage > 0 && (l.busy/picos)%f.OutageEvery >= f.OutageEvery-f.Outage {
		return true
	}
	change := f.Burst.Enter
	if l.bad {
		change = f.Burst.Leave
	}
	if happens(^l.seed, index, drawLoss, change) {
		l.bad = !l.bad
	}
	if l.bad && happens(^l.seed, index, drawMark, f.Burst.Loss) {
		return true
	}
	return happens(l.seed, index, drawLoss, f.Loss)
}

// fly schedules the arrival of a frame at the other end.
func (l *line) fly(p *packet) {
	l.net.events.at(max(l.busy/picos, l.net.Now)+l.delay(), l.arrival, p.dst, p)
}

func (l *line) delay() falcon.Time { return l.net.hop() + l.cfg.Delay }

// expectIdle schedules releaseAll for when nothing has been sent for a round trip.
func (l *line) expectIdle() {
	if !l.expecting {
		l.expecting = true
		l.net.events.at(l.busy/picos+l.patience(), holdOver, l.index, nil)
	}
}

func (l *line) patience() falcon.Time { return max(l.net.cfg.RTT, 1000) }

// releaseAll sends held frames, unless the line is still in use.
func (l *line) releaseAll() {
	l.expecting = false
	if len(l.held) == 0 {
		return
	}
	if l.busy/picos+l.patience() > l.net.Now {
		l.expectIdle()
		return
	}
	for _, p := range l.held {
		l.fly(p)
	}
	l.held = l.held[:0]
}

package sim

import (
	"fmt"

	"github.com/falcon-vnic/vnic/falcon"
)

// Faults are what one direction of a link does to frames. Shares are 0..1 and independent.
type Faults struct {
	Loss      float64 // share of frames lost
	Burst     Burst   // losses that come together
	Duplicate float64 // share of frames that arrive twice
	Reorder   float64 // share of frames held back until later ones have passed
	ReorderBy int     // how many later ones pass at most

	Outage, OutageEvery falcon.Time // everything is lost for Outage at the end of each OutageEvery
}

// Burst is the loss model of Gilbert and Elliott: a link is good, and loses nothing, or bad. Before
// each frame it may change from one to the other.
type Burst struct {
	Enter float64 // chance that a good link becomes bad; 0 = never
	Leave float64 // chance that a bad link becomes good
	Loss  float64 // share of frames lost while it is bad
}

// none reports whether the link is perfect.
func (f *Faults) none() bool { return *f == Faults{ReorderBy: f.ReorderBy} }

func (f *Faults) check() error {
	for _, s := range []struct {
		name string
		v    float64
	}{
		{"loss", f.Loss},
		{"duplicate", f.Duplicate},
		{"reorder", f.Reorder},
		{"burst.enter", f.Burst.Enter},
		{"burst.leave", f.Burst.Leave},
		{"burst.loss", f.Burst.Loss},
	} {
		if !(s.v >= 0 && s.v <= 1) {
			return fmt.Errorf("%s: %v is not a share; use 0 to 1, as 0.01 for 1 %%", s.name, s.v)
		}
	}
	switch {
	case f.Loss == 1:
		return fmt.Errorf("loss: 1 loses every frame; use less")
	case f.Burst.Enter > 0 && (f.Burst.Leave == 0 || f.Burst.Loss == 0):
		return fmt.Errorf("burst: a link that becomes bad needs leave and loss above 0")
	case f.ReorderBy < 0 || f.ReorderBy > 64 || f.Reorder > 0 && f.ReorderBy == 0:
		return fmt.Errorf("reorder_by: %d is out of range; use 1 to 64 positions", f.ReorderBy)
	case f.Outage < 0 || f.OutageEvery < 0 || f.Outage > 0 && f.Outage >= f.OutageEvery:
		return fmt.Errorf("outage: %d ns is out of range; use less than outage_every, %d ns", f.Outage, f.OutageEvery)
	}
	return nil
}

// LinkConfig is one direction of a host's link.
type LinkConfig struct {
	Rate  int64       // bits per second, 0 = the network's
	Delay falcon.Time // propagation, beside what the network's round trip has
	Faults
}

func (c *LinkConfig) check() error {
	switch {
	case c.Rate != 0 && (c.Rate < 1e6 || c.Rate > 1e13):
		return fmt.Errorf("rate: %d bit/s is out of range; use 1 Mbit/s to 10 Tbit/s", c.Rate)
	case c.Delay < 0 || c.Delay > 1e9:
		return fmt.Errorf("delay: %d ns is out of range; use 0 to 1 s", c.Delay)
	}
	return c.Faults.check()
}

// HostLinks are the links of some hosts, unlike those of the others.
type HostLinks struct {
	Host, Count int        // the first host, and how many
	Up, Down    LinkConfig // from the host to the switch, and back
}

// line is one direction of a link at work.
type line struct {
	net       *Network
	cfg       LinkConfig
	index     int       // in Network.lines
	arrival   eventKind // at the other end
	seed      uint64
	frames    uint64 // sent
	bad       bool   // the state of Burst
	busy      int64  // until then, picoseconds
	held      []*packet
	expecting bool // a holdOver event is scheduled
}

// occupy takes the time of a frame of size bytes on the line, and returns when its last bit leaves,
// picoseconds.
func (l *line) occupy(size int) int64 {
	l.busy = max(l.busy, l.net.Now*picos) + int64(float64(size)*8e12/float64(l.cfg.Rate))
	return l.busy
}

// send takes a frame that occupied the line. A frame held back goes right after the frame that is
// so many positions later, so at most that many overtake it; if none comes for a round trip it goes
// alone.
func (l *line) send(p *packet) {
	index := l.frames
	l.frames++
	switch {
	case l.loses(index):
		l.net.lost(p)
	case l.cfg.Reorder > 0 && draw(l.seed, index, drawReorder) < l.cfg.Reorder:
		p.release = index + 1 + uint64(draw(l.seed, index, drawJitter)*float64(l.cfg.ReorderBy))
		l.held = append(l.held, p)
		l.expectIdle()
	default:
		l.fly(p)
		if l.cfg.Duplicate > 0 && draw(l.seed, index, drawDuplicate) < l.cfg.Duplicate {
			l.fly(l.net.copy(p))
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

// loses decides about the frame of that index.
func (l *line) loses(index uint64) bool {
	f := &l.cfg.Faults
	if f.Outage > 0 && (l.busy/picos)%f.OutageEvery >= f.OutageEvery-f.Outage {
		return true
	}
	if f.Burst.Enter > 0 {
		change := f.Burst.Enter
		if l.bad {
			change = f.Burst.Leave
		}
		if draw(^l.seed, index, drawLoss) < change {
			l.bad = !l.bad
		}
		if l.bad && draw(^l.seed, index, drawMark) < f.Burst.Loss {
			return true
		}
	}
	return f.Loss > 0 && draw(l.seed, index, drawLoss) < f.Loss
}

// fly lets a frame arrive at the other end.
func (l *line) fly(p *packet) {
	l.net.at(max(l.busy/picos, l.net.Now)+l.delay(), l.arrival, p.dst.index, p)
}

func (l *line) delay() falcon.Time { return l.net.hop() + l.cfg.Delay }

// expectIdle makes releaseAll look when nothing was sent for a round trip.
func (l *line) expectIdle() {
	if !l.expecting {
		l.expecting = true
		l.net.at(l.busy/picos+l.patience(), holdOver, l.index, nil)
	}
}

func (l *line) patience() falcon.Time { return max(l.net.cfg.RTT, 1000) }

// releaseAll ends the wait of held frames unless the line is still in use.
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

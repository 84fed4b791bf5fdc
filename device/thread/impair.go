package thread

import (
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// impaired applies the configured impairment to one direction of the uplink, packet by packet:
// superframes are cut before it on the way in, and not built yet on the way out. Packets bypass it
// while there is no impairment.
//
//	port ▶ rx link ▶ shard ▶ tx queue ▶ tx link ▶ out ▶ port
type impaired struct {
	cfg    config.Impairment
	link   *sim.Link  // nil: never impaired
	on     bool       // an impairment is set, or packets are still under way
	marked uint64     // packets that were marked: they allowed it
	size   int        // longest packet
	cut    []byte     // one packet of a superframe
	out    *tap.Queue // tx: packets that passed the link and wait for the port
}

// Directions of an uplink.
const (
	RX = iota
	TX
	Directions
)

// impairSlots is the number of packets that passed the tx link and wait for the port.
const impairSlots = 64

// newImpaired returns both directions of an uplink with an MTU.
func newImpaired(mtu int, c *config.Impair) (ds [Directions]impaired) {
	for i, c := range [Directions]config.Impairment{c.RX, c.TX} {
		ds[i] = impaired{size: mtu + tap.FrameOverhead}
		ds[i].set(c, uint64(i))
	}
	return ds
}

// set changes the impairment. Packets under way are not affected; a new seed restarts the random
// choices.
func (d *impaired) set(c config.Impairment, direction uint64) {
	first := d.link == nil
	if first {
		if d.cfg = c; !c.On() {
			return
		}
		d.link = sim.NewLink(0, sim.Impairment{})
		d.cut = make([]byte, d.size)
		d.out = tap.NewQueue(impairSlots, d.size)
	}
	if first || c.Seed != d.cfg.Seed {
		d.link.Seed(sim.Mix(c.Seed) + direction) // the directions must not choose alike
	}
	d.cfg = c
	d.link.Set(sim.Impairment{
		Loss: float64(c.Loss), Duplicate: float64(c.Duplicate), Reorder: float64(c.Reorder), Corrupt: float64(c.Corrupt), Mark: float64(c.Mark),
		Delay: int64(c.Delay), Jitter: int64(c.Jitter), ReorderDelay: int64(c.ReorderDelay), Rate: int64(c.Rate), Queue: c.Queue, Down: c.Down,
	})
	d.on = d.on || c.On()
}

// settle turns the direction off when there is no impairment and no packet is under way.
func (d *impaired) settle() {
	d.on = d.cfg.On() || d.link.InFlight() > 0 || len(d.out.Pending()) > 0
}

// take sends a frame, or each packet of a superframe, through the link.
func (d *impaired) take(now vtime.Time, frame []byte, segment int) {
	if segment <= 0 {
		d.link.Send(now, frame)
		return
	}
	for i := 0; ; i++ {
		n := tap.Cut(d.cut, frame, segment, i)
		if n == 0 {
			return
		}
		d.link.Send(now, d.cut[:n])
	}
}

// next copies the next packet that has arrived to b. It returns 0 if there is none.
func (d *impaired) next(now vtime.Time, b []byte) int {
	f, ok := d.link.Receive(now)
	if !ok {
		return 0
	}
	n := copy(b, f.Data)
	if f.CE && underlay.MarkCE(b[:n]) {
		d.marked++
	}
	return n
}

// deadline returns when the next packet arrives and can be taken.
func (d *impaired) deadline() vtime.Time {
	if !d.on || d.out.Slot() == nil {
		return vtime.Never
	}
	return d.link.Deadline()
}

// Impaired describes the impairment of one direction, and what it did.
type Impaired struct {
	Asked  config.Impairment
	Counts sim.LinkStats
	Marked uint64 // number of packets counted in Counts.Marked that allowed marking
}

// Impaired describes a direction of the uplink.
func (t *Thread) Impaired(direction int) Impaired { return t.impair[direction].describe() }

// Impair changes the impairment of a direction of the uplink.
func (t *Thread) Impair(direction int, c config.Impairment) {
	t.impair[direction].set(c, uint64(direction))
}

func (d *impaired) describe() Impaired {
	v := Impaired{Asked: d.cfg, Marked: d.marked}
	if d.link != nil {
		v.Counts = d.link.Stats()
	}
	return v
}

// impairRx sends the frames just read through the rx link and leaves the packets that have arrived
// in t.in.
func (t *Thread) impairRx() {
	now, d := t.Clock(), &t.impair[RX]
	for i, f := range t.in.Frames {
		d.take(now, f, t.in.Segments[i])
	}
	t.in.Frames, t.in.Segments = t.in.Frames[:0], t.in.Segments[:0]
	for _, b := range t.rx {
		n := d.next(now, b)
		if n == 0 {
			break
		}
		t.in.Frames = append(t.in.Frames, b[:n])
		t.in.Segments = append(t.in.Segments, 0)
	}
	d.settle()
}

// impairTx sends the shard's frames through the tx link and moves the packets that have arrived to
// out, as far as there is room.
func (t *Thread) impairTx() {
	now, d, tx := t.Clock(), &t.impair[TX], t.Queue
	pending := tx.Pending()
	for _, f := range pending {
		d.take(now, f, 0)
	}
	tx.Taken(len(pending))
	for b := d.out.Slot(); b != nil; b = d.out.Slot() {
		n := d.next(now, b)
		if n == 0 {
			break
		}
		d.out.Commit(n)
	}
}

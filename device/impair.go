package device

import (
	"math"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/sim"
)

// impaired is a direction of the uplink that does to packets what is asked of
// it, one by one: superframes are cut up on their way in, and not yet made on
// their way out. While nothing is asked packets do not come here.
//
//	port ▶ rx link ▶ shard ▶ tx queue ▶ tx link ▶ out ▶ port
type impaired struct {
	cfg    config.Impairment
	link   *sim.Link // nil: never asked for
	on     bool      // something is asked, or still under way
	marked uint64    // packets that allowed it
	size   int       // of a packet, at most
	cut    []byte    // one packet of a superframe
	out    *txQueue  // tx: what came through and waits for the port
}

// Directions of an uplink.
const (
	directionRx = iota
	directionTx
	directions
)

// impairSlots is how many packets that came through tx wait for the port.
const impairSlots = 64

// newImpaired returns both directions of an uplink with an MTU.
func newImpaired(mtu int, c *config.Impair) (ds [directions]impaired) {
	for i, c := range [directions]config.Impairment{c.RX, c.TX} {
		ds[i] = impaired{size: mtu + tap.FrameOverhead}
		ds[i].set(c, uint64(i))
	}
	return ds
}

// set changes what is asked. Packets under way arrive as they would have; a new
// seed begins the decisions anew.
func (d *impaired) set(c config.Impairment, direction uint64) {
	first := d.link == nil
	if first {
		if d.cfg = c; !c.On() {
			return
		}
		d.link = sim.NewLink(0, sim.Impairment{})
		d.cut = make([]byte, d.size)
		d.out = newTxQueue(impairSlots, d.size)
	}
	if first || c.Seed != d.cfg.Seed {
		d.link.Seed(sim.Mix(c.Seed) + direction) // not the same packets of both directions
	}
	d.cfg = c
	d.link.Set(sim.Impairment{
		Loss: float64(c.Loss), Duplicate: float64(c.Duplicate), Reorder: float64(c.Reorder), Corrupt: float64(c.Corrupt), Mark: float64(c.Mark),
		Delay: int64(c.Delay), Jitter: int64(c.Jitter), ReorderDelay: int64(c.ReorderDelay), Rate: int64(c.Rate), Queue: c.Queue, Down: c.Down,
	})
	d.on = d.on || c.On()
}

// settle turns the direction off when nothing is asked and nothing under way.
func (d *impaired) settle() {
	d.on = d.cfg.On() || d.link.InFlight() > 0 || len(d.out.pending()) > 0
}

// take puts a frame, or each packet of a superframe, on the way.
func (d *impaired) take(now falcon.Time, frame []byte, segment int) {
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

// next copies the next packet that has arrived to b. It returns 0 when there is
// none.
func (d *impaired) next(now falcon.Time, b []byte) int {
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

// deadline is when the next packet arrives and can be taken.
func (d *impaired) deadline() falcon.Time {
	if !d.on || d.out.slot() == nil {
		return math.MaxInt64
	}
	return d.link.Deadline()
}

// counts adds the direction's counters.
func (d *impaired) counts(v control.Counters, direction string) {
	c := d.snapshot().Counts
	for name, n := range map[string]uint64{
		"packets": c.Packets, "delivered": c.Delivered, "lost": c.Lost, "duplicated": c.Duplicated, "reordered": c.Reordered,
		"corrupted": c.Corrupted, "marked": c.Marked, "overflowed": c.Overflowed,
	} {
		v["impair."+direction+"_"+name] = n
	}
}

// impairRx puts what the port read on its way and leaves in l.in what has
// arrived.
func (l *loop) impairRx() {
	now, d := l.clock(), &l.impair[directionRx]
	for i, f := range l.in.Frames {
		d.take(now, f, l.in.Segments[i])
	}
	l.in.Frames, l.in.Segments = l.in.Frames[:0], l.in.Segments[:0]
	for _, b := range l.rx {
		n := d.next(now, b)
		if n == 0 {
			break
		}
		l.in.Frames = append(l.in.Frames, b[:n])
		l.in.Segments = append(l.in.Segments, 0)
	}
	d.settle()
}

// impairTx puts what the shard made on its way and moves to out what has
// arrived, as far as there is room.
func (l *loop) impairTx() {
	now, d, tx := l.clock(), &l.impair[directionTx], l.shard.tx
	pending := tx.pending()
	for _, f := range pending {
		d.take(now, f, 0)
	}
	tx.taken(len(pending))
	for b := d.out.slot(); b != nil; b = d.out.slot() {
		n := d.next(now, b)
		if n == 0 {
			break
		}
		d.out.commit(n)
	}
}

package sim

import (
	"fmt"
	"math"

	"github.com/falcon-vnic/vnic/falcon"
)

// FlowConfig describes one connection and the endless series of operations on it. Without a rate an
// operation begins when one ends. With a rate operations arrive by the clock, whether or not
// earlier ones have ended.
type FlowConfig struct {
	From, To    int   // hosts
	Pull        bool  // From pulls from To instead of pushing to it
	Ordered     bool  // an ordered connection
	Sizes       []int // bytes of operations, drawn at random
	Outstanding int   // operations at once, 0 = as many as the engine accepts
	Start       falcon.Time

	Rate    int64 // bits per second of operations that arrive, 0 = no clock
	Poisson bool  // arrivals are independent of one another; otherwise at equal distances
}

// MaxOperation is the maximum size of an operation.
const MaxOperation = 1 << 30

// Check returns an error that names the first invalid value.
func (f *FlowConfig) Check(hosts int) error {
	switch {
	case f.From < 0 || f.From >= hosts:
		return fmt.Errorf("from: there is no host %d; use 0 to %d", f.From, hosts-1)
	case f.To < 0 || f.To >= hosts || f.To == f.From:
		return fmt.Errorf("to: %d is not another host; use 0 to %d but not %d", f.To, hosts-1, f.From)
	case len(f.Sizes) == 0:
		return fmt.Errorf("sizes: empty; give at least one size in bytes")
	case f.Outstanding < 0 || f.Outstanding > falcon.MaxTxWindow:
		return fmt.Errorf("outstanding: %d is out of range; use 1 to %d, or 0 for as many as fit", f.Outstanding, falcon.MaxTxWindow)
	case f.Start < 0:
		return fmt.Errorf("start: %d ns is negative; use 0 or later", f.Start)
	case f.Rate < 0 || f.Rate > 1e13:
		return fmt.Errorf("rate: %d bit/s is out of range; use up to 10 Tbit/s, or 0 for as fast as operations end", f.Rate)
	case f.Poisson && f.Rate == 0:
		return fmt.Errorf("arrivals: poisson needs a rate; give one")
	}
	for _, s := range f.Sizes {
		if s < 1 || s > MaxOperation {
			return fmt.Errorf("sizes: %d is out of range; use 1 to %d bytes", s, MaxOperation)
		}
	}
	return nil
}

// gap returns the mean time between arrivals in nanoseconds, 0 without a rate.
func (f *FlowConfig) gap() float64 {
	if f.Rate == 0 {
		return 0
	}
	sum := 0.0
	for _, s := range f.Sizes {
		sum += float64(s)
	}
	return sum / float64(len(f.Sizes)) * 8e9 / float64(f.Rate)
}

// flow is a running FlowConfig.
type flow struct {
	cfg         FlowConfig
	net         *Network
	index       int // in Network.flows
	start       falcon.Time
	from, to    *endpoint
	rnd         uint64
	arrivals    arrivals
	expected    falcon.Time // when the last scheduled arrival event is due
	operations  operations
	outstanding int
	blocked     bool   // the engine refused the next packet until EvCredit
	current     uint32 // the operation whose packets are being issued
	left        int    // bytes of it that are not issued yet, 0 = there is no current operation
	received    uint64 // bytes, at the receiving end
	failed      uint64 // operations
	dead        bool
}

// arrivals computes the times at which operations arrive.
type arrivals struct {
	next    float64 // nanoseconds
	gap     float64 // mean, 0 = an operation arrives whenever there is room
	poisson bool
	rnd     uint64
}

// newArrivals begins at a random point within a gap, because flows of one rate would otherwise move
// in step.
func newArrivals(cfg *FlowConfig, start falcon.Time, seed uint64) arrivals {
	a := arrivals{next: float64(start), gap: cfg.gap(), poisson: cfg.Poisson, rnd: seed}
	a.rnd = Mix(a.rnd)
	a.next += a.gap * unit(a.rnd)
	return a
}

func (a *arrivals) advance() {
	gap := a.gap
	if a.poisson {
		a.rnd = Mix(a.rnd)
		gap *= -math.Log(1 - unit(a.rnd))
	}
	a.next += gap
}

// operation is an operation in progress.
type operation struct {
	arrived falcon.Time
	packets int  // packets that have not ended
	issued  bool // all packets were issued
	failed  bool
}

// operations holds the operations in progress. Their indices are the tags of their packets.
type operations struct {
	all  []operation
	free []uint32
}

func (o *operations) begin(arrived falcon.Time) uint32 {
	if len(o.free) == 0 {
		o.free = append(o.free, uint32(len(o.all)))
		o.all = append(o.all, operation{})
	}
	last := len(o.free) - 1
	i := o.free[last]
	o.free = o.free[:last]
	o.all[i] = operation{arrived: arrived}
	return i
}

func (o *operations) end(i uint32) { o.free = append(o.free, i) }

// endpoint is one end of a flow's connection, with what the network knows about its packets.
type endpoint struct {
	flow *flow
	host int
	peer *endpoint
	conn *falcon.Conn

	history history
}

// issue starts operations until the flow or the engine has enough, or the next operation has not
// arrived yet.
func (f *flow) issue(now falcon.Time) {
	for !f.dead && !f.blocked {
		if f.left == 0 && !f.begin(now) {
			return
		}
		f.issuePacket(now)
	}
}

// begin starts an operation, if one has arrived and may start.
func (f *flow) begin(now falcon.Time) bool {
	if now < f.start || f.cfg.Outstanding != 0 && f.outstanding == f.cfg.Outstanding {
		return false
	}
	arrived := now
	if f.arrivals.gap > 0 {
		arrived = falcon.Time(math.Ceil(f.arrivals.next))
		if arrived > now {
			f.expect(arrived)
			return false
		}
		f.arrivals.advance()
	}
	f.rnd = Mix(f.rnd)
	f.left = f.cfg.Sizes[f.rnd%uint64(len(f.cfg.Sizes))]
	f.current = f.operations.begin(arrived)
	f.outstanding++
	return true
}

func (f *flow) expect(at falcon.Time) {
	if f.expected != at {
		f.expected = at
		f.net.events.at(at, arrival, f.index, nil)
	}
}

// issuePacket issues the next packet of the current operation.
func (f *flow) issuePacket(now falcon.Time) {
	n := min(f.left, f.net.cfg.MTU)
	var err error
	switch tag := uint64(f.current); {
	case f.cfg.Pull:
		err = f.from.conn.Pull(now, tag, 16, n)
	case n == f.left && f.operations.all[f.current].packets > 0:
		err = f.from.conn.PushLast(now, tag, n)
	default:
		err = f.from.conn.Push(now, tag, n)
	}
	if err != nil {
		f.blocked = err == falcon.ErrXoff
		f.dead = !f.blocked
		return
	}
	f.left -= n
	o := &f.operations.all[f.current]
	o.packets++
	o.issued = f.left == 0
}

// packetOver ends a packet of an operation. The last packet ends the operation.
func (f *flow) packetOver(now falcon.Time, tag uint64, failed bool) {
	o := &f.operations.all[tag]
	o.packets--
	o.failed = o.failed || failed
	if o.packets > 0 || !o.issued {
		return
	}
	f.outstanding--
	if o.failed {
		f.failed++
	} else {
		f.net.completions.add(o.arrived, now)
	}
	f.operations.end(uint32(tag))
}

func (e *endpoint) handle(now falcon.Time, ev *falcon.Event) {
	f := e.flow
	switch ev.Kind {
	case falcon.EvPush:
		f.received += uint64(len(ev.Data))
		ev.Conn.AckPush(now, ev.RSN)
	case falcon.EvPull:
		if ev.Conn.RespondPull(now, ev.RSN, 0, ev.Length) != nil {
			f.failed++
		}
	case falcon.EvPushDone, falcon.EvPullDone:
		if ev.Kind == falcon.EvPullDone && ev.Code == falcon.CmplAck {
			f.received += uint64(len(ev.Data))
		}
		f.packetOver(now, ev.Tag, ev.Code != falcon.CmplAck)
		f.issue(now)
	case falcon.EvCredit:
		if e == f.from {
			f.blocked = false
			f.issue(now)
		}
	case falcon.EvClosed:
		f.dead = true
	}
}

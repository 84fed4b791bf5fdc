package falcon

import (
	"time"

	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/cc/rue"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// congestion is the state of a connection's congestion control.
type congestion struct {
	state     cc.State
	acked     uint16 // packets since the last event to the RUE
	ipg       uint16 // gap between packets while fcwnd is below one packet, TU
	lastEvent Time   // when the last event to the RUE was raised
	pending   bool   // an event of the connection is at the RUE
	path      uint8  // changes when the algorithm asks for another network path

	// These detect connections that congestion control limits to one packet per round trip to no
	// avail: if the delay is above the target with so small a window, the connection's own queue is
	// not the cause. Either the path is longer than the target, or more flows share a port than its
	// queue has room for.
	longPath  bool // that lasted for longPathAfter, and EvLongPath was emitted
	longSince Time // since when the delay is above the target and the window a packet or less; 0: that is not so
}

// fcwnd returns the fabric window in whole packets, at least one. Below one packet, packets are
// spaced instead (Falcon §10.3.5).
func (g *congestion) fcwnd() uint32 { return max(g.state.Fcwnd>>cc.FractionBits, 1) }

// ncwnd returns the NIC window in packets.
func (g *congestion) ncwnd() uint32 { return max(g.state.Ncwnd, 1) }

// gap returns the time between packets while fcwnd is below one packet, else 0.
func (g *congestion) gap() Time { return Time(g.ipg) * cc.TUNanos }

func (g *congestion) rtt() Time { return fromFU(g.state.RTT) }

func (g *congestion) rto() Time { return max(fromFU(g.state.RTO), 1) }

// countAcked counts an acknowledged packet for the next event.
func (g *congestion) countAcked() {
	if g.acked < maxAcked {
		g.acked++
	}
}

// maxAcked is the saturation value of the 10-bit count of packets between congestion events.
const maxAcked = 1<<10 - 1

// rateUpdate is the engine's side of the Rate Update Engine (Falcon §10.6). Events are answered in
// the order they were raised, so a queue beside the two queues of binary entries holds the
// connections that they belong to.
type rateUpdate struct {
	e       *Engine
	cfg     *rue.Config
	rue     rue.RUE
	ev      rue.Event // the event to raise
	result  rue.Result
	events  rue.Queue
	results rue.Queue
	jobs    ring.Queue[job] // one for every event at the RUE; the first results.Len() of them are answered
	busy    Time            // until when the RUE works on the queued events
	timer   timer.Handle    // when the next result comes into force
}

// job is an event at the RUE.
type job struct {
	conn *Conn
	done Time // when it is answered; the result comes into force Config.Latency later
}

func newRateUpdate(e *Engine) rateUpdate {
	cfg := &e.profile.RUE
	return rateUpdate{
		e: e, cfg: cfg, rue: rue.New(e.profile.CC), events: rue.NewQueue(cfg.Size), results: rue.NewQueue(rue.MaxQueue),
	}
}

// raise raises the event in u.ev for a connection, unless one of its events is still at the RUE or
// the policy does not admit it. Packets acknowledged meanwhile count towards the next event (Falcon
// §10.6.1).
func (u *rateUpdate) raise(now Time, c *Conn) {
	g, cfg := &c.flight.cc, u.cfg
	if g.pending {
		u.e.stats.RUEBusy++
		return
	}
	if !cfg.AnswersAtOnce() {
		u.answer(now)
	}
	if !cfg.Admit(u.events.Len(), now-g.lastEvent, g.acked) {
		u.e.stats.RUESkipped++
		return
	}
	u.e.stats.RUEEvents++
	u.ev.Conn, u.ev.Acked, u.ev.IPG = c.cfg.LocalCID, g.acked, uint32(g.ipg)
	g.acked, g.lastEvent = 0, now
	if cfg.AnswersAtOnce() {
		r := u.rue.Update(&u.ev, &g.state, FalconTime(now))
		c.rateUpdated(r.IPG, r.Repath)
		return
	}
	u.ev.State = g.state
	u.ev.Gen = u.events.Gen()
	u.ev.Append(u.events.Put())
	u.busy = max(u.busy, now) + cfg.Service
	*u.jobs.Push() = job{conn: c, done: u.busy}
	g.pending = true
	if !u.timer.Armed() {
		u.e.arm(&u.timer, u, u.busy+cfg.Latency)
	}
}

// answer runs the RUE up to now.
func (u *rateUpdate) answer(now Time) {
	for u.events.Len() > 0 {
		j := u.jobs.At(u.results.Len()) // the first event that is not answered
		if j.done > now {
			return
		}
		entry := u.results.Put()
		if entry == nil {
			return // the RUE waits until results are taken
		}
		ev, _ := rue.ParseEvent(u.events.Take())
		u.rue.Process(&ev, FalconTime(j.done), &u.result)
		u.result.Append(entry)
	}
}

// expired implements timerOwner: it applies the results that are due.
func (u *rateUpdate) expired(now Time) {
	for u.answer(now); u.results.Len() > 0; u.answer(now) {
		j := u.jobs.At(0)
		if j.done+u.cfg.Latency > now {
			break
		}
		r, _ := rue.ParseResult(u.results.Take())
		c := j.conn
		u.jobs.Pop().conn = nil
		if c.closed {
			continue
		}
		g := &c.flight.cc
		g.pending = false
		r.State.Select = g.state.Select // a result does not contain it
		g.state = r.State
		c.rateUpdated(r.IPG, r.Repath)
		c.enqueue()
	}
	if u.jobs.Len() > 0 {
		u.e.arm(&u.timer, u, u.jobs.At(0).done+u.cfg.Latency)
	}
}

// rateUpdated applies a result whose State is already in force. A new timeout holds for packets in
// flight too (Falcon §10.6.2.2).
func (c *Conn) rateUpdated(ipg uint32, repath bool) {
	c.flight.cc.ipg = uint16(min(ipg, cc.MaxIPG))
	if repath {
		c.flight.cc.path++
		c.e.stats.Repaths++
	}
	c.flight.arm()
}

// delaySample fills in the RUE event of an ACK or NACK (Falcon §10.1). T3 is when the ACK or NACK
// was sent, T4 when it was received.
func (u *rateUpdate) delaySample(now Time, p *Packet, typ rue.Type, t1, t2 uint32, info *wire.Congestion) *rue.Event {
	u.ev = rue.Event{
		Type: typ, Hops: info.Hops, RxLevel: info.RxOccupancy, ECN: info.ECN, Metadata: info.RUE,
		T1: t1, T2: t2, T3: p.T1, T4: FalconTime(now),
	}
	return &u.ev
}

const longPathAfter = int64(time.Second)

// delayTooLong looks for a long path after each acknowledgement. It returns true once, when it has
// found one.
func (g *congestion) delayTooLong(now Time) bool {
	if s := &g.state; s.BaseDelay == 0 || s.Delay < s.BaseDelay || s.Fcwnd > cc.One {
		g.longPath, g.longSince = false, 0
		return false
	}
	if g.longSince == 0 {
		g.longSince = now
	}
	if g.longPath || now-g.longSince < longPathAfter {
		return false
	}
	g.longPath = true
	return true
}

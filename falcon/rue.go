package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/cc/rue"
	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// rateUpdate is the engine's side of the Rate Update Engine (Falcon §10.6). Events are answered in
// the order they were raised, so the connections they belong to are a queue beside the two of
// binary entries.
type rateUpdate struct {
	cfg     *rue.Config
	wheel   *timer.Wheel[timerOwner]
	rue     rue.RUE
	ev      rue.Event
	result  rue.Result
	events  rue.Queue
	results rue.Queue
	jobs    ring.Queue[job] // one for every event on the way; the first results.Len() of them are answered
	busy    Time            // the RUE works on what is queued until then
	timer   timer.Handle    // the next result comes into force
}

// job is an event on the way.
type job struct {
	conn *Conn
	done Time // answered; in force Config.Latency later
}

func newRateUpdate(p *Profile, wheel *timer.Wheel[timerOwner]) rateUpdate {
	return rateUpdate{
		cfg: &p.RUE, wheel: wheel, rue: rue.New(p.CC), events: rue.NewQueue(p.RUE.Size), results: rue.NewQueue(rue.MaxQueue),
	}
}

// congestion raises the event in rate.ev, unless one of the connection is on the way or the
// policy finds it is not worth it; then what is acknowledged adds up for the next (Falcon §10.6.1).
func (c *delivery) congestion(now Time) {
	u := &c.e.rate
	cfg := u.cfg
	if c.eventOut {
		c.e.stats.RUEBusy++
		return
	}
	if !cfg.AnswersAtOnce() {
		u.answer(now)
	}
	if !cfg.Admit(u.events.Len(), now-c.lastEvent, c.acked) {
		c.e.stats.RUESkipped++
		return
	}
	c.e.stats.RUEEvents++
	u.ev.Conn, u.ev.Acked, u.ev.IPG = c.localCID, c.acked, uint32(c.ipg)
	c.acked, c.lastEvent = 0, now
	if cfg.AnswersAtOnce() {
		r := u.rue.Update(&u.ev, &c.cc, FalconTime(now))
		c.rateUpdated(r.IPG, r.Repath)
		return
	}
	u.ev.State = c.cc
	u.ev.Gen = u.events.Gen()
	u.ev.Append(u.events.Put())
	u.busy = max(u.busy, now) + cfg.Service
	*u.jobs.Push() = job{conn: c.self(), done: u.busy}
	c.eventOut = true
	if !u.timer.Armed() {
		u.wheel.Arm(&u.timer, u, timerRUE, u.busy+cfg.Latency)
	}
}

// answer lets the RUE do its work up to now.
func (u *rateUpdate) answer(now Time) {
	for u.events.Len() > 0 {
		j := u.jobs.At(u.results.Len()) // of the first event not answered
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

// expired implements timerOwner: results that are due come into force.
func (u *rateUpdate) expired(now Time, _ timer.Kind) {
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
		c.eventOut = false
		r.State.Select = c.cc.Select // not part of a result
		c.cc = r.State
		c.rateUpdated(r.IPG, r.Repath)
		c.kick()
	}
	if u.jobs.Len() > 0 {
		u.wheel.Arm(&u.timer, u, timerRUE, u.jobs.At(0).done+u.cfg.Latency)
	}
}

// rateUpdated applies a result, whose State is in force already. A new timeout holds for packets in
// flight too (Falcon §10.6.2.2).
func (c *delivery) rateUpdated(ipg uint32, repath bool) {
	c.ipg = uint16(min(ipg, cc.MaxIPG))
	if repath {
		c.path++
		c.e.stats.Repaths++
	}
	c.timeFlight()
}

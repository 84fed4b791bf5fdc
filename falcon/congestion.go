package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/cc/rue"
	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// rateUpdate is the engine's side of the Rate Update Engine (Falcon §10.6). Events are answered in
// the order they were raised, so a queue beside the two queues of binary entries holds the
// connections that they belong to.
type rateUpdate struct {
	cfg     *rue.Config
	wheel   *timer.Wheel[timerOwner]
	rue     rue.RUE
	ev      rue.Event
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

func newRateUpdate(p *Profile, wheel *timer.Wheel[timerOwner]) rateUpdate {
	return rateUpdate{
		cfg: &p.RUE, wheel: wheel, rue: rue.New(p.CC), events: rue.NewQueue(p.RUE.Size), results: rue.NewQueue(rue.MaxQueue),
	}
}

// congestion raises the event in rate.ev, unless an event of the connection is still at the RUE or
// the policy does not admit it. Packets acknowledged meanwhile count towards the next event (Falcon
// §10.6.1).
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
		r.State.Select = c.cc.Select // a result does not contain it
		c.cc = r.State
		c.rateUpdated(r.IPG, r.Repath)
		c.kick()
	}
	if u.jobs.Len() > 0 {
		u.wheel.Arm(&u.timer, u, timerRUE, u.jobs.At(0).done+u.cfg.Latency)
	}
}

// rateUpdated applies a result whose State is already in force. A new timeout holds for packets in
// flight too (Falcon §10.6.2.2).
func (c *delivery) rateUpdated(ipg uint32, repath bool) {
	c.ipg = uint16(min(ipg, cc.MaxIPG))
	if repath {
		c.path++
		c.e.stats.Repaths++
	}
	c.timeFlight()
}

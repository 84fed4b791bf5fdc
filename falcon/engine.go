package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// Engine is a Falcon transport instance. See the package comment for how to drive it.
type Engine struct {
	cfg     Config
	profile Profile
	ulp     ULP
	conns   connTable
	wheel   timer.Wheel[timerOwner]
	stats   Stats

	events   ring.Queue[upcall] // bounded by the contexts they refer to
	lastCell *cell              // payload of the event that Next returned last

	contexts contexts
	schedule schedule
	waiting  waiting

	rate       rateUpdate
	ack        wire.Ack      // the packet being received, if it is an ACK
	push       wire.PushData // the packet being received, if it is a push
	hearing    hearing
	ackAfter   uint16 // count of half packets at which a coalesced ACK is sent
	prefetched uint32 // keeps the compiler from removing Prefetch
}

// NewEngine returns an engine for one ULP. It panics if the profile is invalid; check a profile
// that comes from outside with Profile.Check first.
func NewEngine(cfg Config, ulp ULP) *Engine {
	cfg.setDefaults()
	if err := cfg.Profile.Check(); err != nil {
		panic(err)
	}
	e := &Engine{cfg: cfg, profile: cfg.Profile, ulp: ulp, ackAfter: uint16(wholePacket * cfg.Profile.AckCount)}
	e.contexts, e.schedule = newContexts(&e.cfg), newSchedule(&e.profile)
	e.rate = newRateUpdate(&e.profile, &e.wheel)
	return e
}

// Conn returns the open connection with that local CID, nil if there is none.
func (e *Engine) Conn(cid CID) *Conn { return e.conns.find(cid) }

// Next takes one event from the queue. It returns false if there is none. ev.Data is valid until
// the next call.
func (e *Engine) Next(ev *Event) bool {
	if e.lastCell != nil {
		e.lastCell.conn.putCell(e.lastCell)
		e.lastCell = nil
	}
	for {
		if e.events.Len() == 0 && e.waiting.recheck {
			e.waiting.wake()
		}
		if e.events.Len() == 0 {
			*ev = Event{}
			return false
		}
		u := e.events.Pop()
		rx, k, gen := u.rx, u.cell, u.gen
		*ev = u.ev
		u.ev.Data, u.ev.Conn, u.cell, u.rx = nil, nil, nil, nil // the queue must not keep them alive
		if rx != nil {
			var ok bool
			if k, ok = rx.take(gen, ev); !ok {
				continue
			}
		}
		e.lastCell = k
		return true
	}
}

// SetWeight lets a function send weight times as much as one of weight 1 when both always have
// something to send. The weight also holds for connections opened later. 0 and 1 remove it.
func (e *Engine) SetWeight(function uint32, weight int) { e.schedule.setWeight(function, weight) }

// HoldCredit keeps EvCredit back while on. What many packets free is then evaluated once, when it
// is switched off.
func (e *Engine) HoldCredit(on bool) { e.waiting.hold = on }

// CreditsChanged makes Next examine the connections that wait for credits again. Call it when
// credits became available outside this engine, for example because a limit was raised, or when a
// connection that got EvCredit does not issue.
func (e *Engine) CreditsChanged() { e.waiting.again() }

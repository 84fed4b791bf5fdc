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

	events   ring.Queue[upcall] // bounded by the contexts they stand for
	lastCell *cell              // payload of the event taken last

	contexts contexts
	schedule schedule
	waiting  waiting

	rate       rateUpdate
	ack        wire.Ack      // the packet that is received, if it is one
	push       wire.PushData // the same
	hearing    hearing
	ackAfter   uint16 // halves of a packet after which a coalesced ACK goes
	prefetched uint32 // keeps the compiler from leaving out Prefetch
}

// NewEngine returns an engine for one ULP. It panics if the profile is impossible; check it with
// Profile.Check first when it comes from outside.
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

// Next takes one upcall. It returns false when there is none. ev.Data is valid until the next call.
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

// SetWeight makes a function send so many times what one of weight 1 does, when both have as much
// to send as they may. It holds for connections to come too; 0 and 1 forget it.
func (e *Engine) SetWeight(function uint32, weight int) { e.schedule.setWeight(function, weight) }

// HoldCredit keeps EvCredit back, so that what many packets free is looked at once, when it is let
// go.
func (e *Engine) HoldCredit(on bool) { e.waiting.hold = on }

// CreditsChanged makes Next look again at the connections that wait for credits: call it when
// credits became available outside this engine, for example because a limit was raised, or when a
// connection that got EvCredit does not issue.
func (e *Engine) CreditsChanged() { e.waiting.again() }

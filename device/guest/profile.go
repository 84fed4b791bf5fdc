package guest

import (
	"math"
	"math/rand/v2"

	"github.com/falcon-vnic/vnic/falcon"
)

// profile makes a function behave in ways that docs/abi allows but that are hard on drivers:
// doorbells served late, commands late, completions many at once or one by one, events late, in
// another order than their queues' completions, or without a cause. Its random choices depend only
// on its seed and on what the function does.
//
// It never loses anything, and never breaks a DEV clause.
type profile struct {
	name string
	seed uint64
	dice *rand.Rand

	did Acts

	pausedUntil falcon.Time // time until which send queues are not looked at
	nextPause   falcon.Time // the next pause does not start before this time
	releaseAt   falcon.Time // time at which held completions are written; 0: none are held
	lastAsync   falcon.Time // due time of the newest delayed asynchronous event: later ones may not overtake it
}

// HostileProfile is the name of the only profile.
const HostileProfile = "hostile"

// Limits of a profile's delays, in ns.
const (
	mostPause   = 800e3
	mostRunning = 2e6
	mostHold    = 500e3
	mostLate    = 2e6
	mostCommand = 1e6
)

func newProfile(name string, seed uint64) *profile {
	return &profile{name: name, seed: seed, dice: rand.New(rand.NewPCG(seed, 0x70726f66))}
}

// oneIn returns true once in n calls on average.
func (p *profile) oneIn(n int) bool { return p.dice.IntN(n) == 0 }

// within returns a random time after now, at most most ns later.
func (p *profile) within(now falcon.Time, most int64) falcon.Time {
	return now + 1 + p.dice.Int64N(most)
}

func (p *profile) deadline() falcon.Time {
	at := falcon.Time(math.MaxInt64)
	if p.pausedUntil != 0 {
		at = p.pausedUntil
	}
	if p.releaseAt != 0 {
		at = min(at, p.releaseAt)
	}
	return at
}

// paused reports whether send queues are not looked at now.
func (p *profile) paused(now falcon.Time) bool { return now < p.pausedUntil }

// endPause clears a pause that is over. Until it is cleared, its end is a deadline, since queues
// may wait for it.
func (p *profile) endPause(now falcon.Time) {
	if !p.paused(now) {
		p.pausedUntil = 0
	}
}

// stuck reports whether send queues are not looked at now. Unlike paused it may start a pause.
func (p *profile) stuck(now falcon.Time) bool {
	if p.paused(now) {
		return true
	}
	if now < p.nextPause {
		return false
	}
	p.did.Pauses++
	p.pausedUntil = p.within(now, mostPause)
	p.nextPause = p.within(p.pausedUntil, mostRunning)
	return true
}

// hold reports whether a completion is held back.
func (p *profile) hold(now falcon.Time) bool {
	if p.oneIn(4) {
		return false
	}
	p.did.Holds++
	if p.releaseAt == 0 {
		p.releaseAt = p.within(now, mostHold)
	}
	return true
}

// releases reports whether held completions are due.
func (p *profile) releases(now falcon.Time) bool {
	if p.releaseAt == 0 || now < p.releaseAt {
		return false
	}
	p.releaseAt = 0
	return true
}

// adminDelay returns the time until which the admin queue is left alone; 0: it is not.
func (p *profile) adminDelay(now falcon.Time) falcon.Time {
	if p.oneIn(2) {
		return 0
	}
	p.did.LateCommands++
	return p.within(now, mostCommand)
}

// event may delay an event, or add a spurious one. It reports whether the event needs no sending
// now.
func (p *profile) event(x *injection, e lateEvent) bool {
	now := *x.now
	if e.async != nil {
		at := now
		if p.oneIn(2) {
			at = p.within(now, mostLate)
		}
		p.lastAsync = max(p.lastAsync, at)
		if p.lastAsync <= now {
			return false
		}
		p.did.LateEvents++
		e.at = p.lastAsync
		x.later(e)
		return true
	}
	if p.oneIn(4) { // once more, without a cause
		p.did.Spurious++
		again := e
		again.at = p.within(now, mostLate)
		x.later(again)
	}
	if p.oneIn(2) {
		p.did.LateEvents++
		e.at = p.within(now, mostLate)
		x.later(e)
		return true
	}
	return false
}

// Acts counts what a profile did.
type Acts struct{ Pauses, Holds, LateEvents, Spurious, LateCommands uint64 }

// Sum returns the total of all counts.
func (a Acts) Sum() uint64 { return a.Pauses + a.Holds + a.LateEvents + a.Spurious + a.LateCommands }

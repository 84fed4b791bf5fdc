package device

import (
	"math"
	"math/rand/v2"

	"github.com/falcon-vnic/vnic/falcon"
)

// profile makes a function do what docs/abi allows and no driver likes: doorbells
// served late, commands late, completions many at once or one by one, events
// late, in another order than their queues' completions, and for nothing. Its dice
// are a function of its seed and of what the function does.
//
// What it does not do is lose anything, or break a DEV clause.
type profile struct {
	name string
	seed uint64
	dice *rand.Rand

	did struct{ dozes, holds, lateEvents, spurious, lateCommands uint64 }

	dozeUntil falcon.Time // send queues are not looked at
	nextDoze  falcon.Time // not before that
	releaseAt falcon.Time // completions that wait are written; 0: none wait
	lastAsync falcon.Time // when the newest asynchronous event that waits is due: they keep their order
}

// hostileProfile is the one there is.
const hostileProfile = "hostile"

// Bounds of what a profile does, in ns.
const (
	mostDoze    = 800e3
	mostAwake   = 2e6
	mostHold    = 500e3
	mostLate    = 2e6
	mostCommand = 1e6
)

func newProfile(name string, seed uint64) *profile {
	return &profile{name: name, seed: seed, dice: rand.New(rand.NewPCG(seed, 0x70726f66))}
}

// oneIn is true once in n times.
func (p *profile) oneIn(n int) bool { return p.dice.IntN(n) == 0 }

// within is a time after now, at most so much.
func (p *profile) within(now falcon.Time, most int64) falcon.Time {
	return now + 1 + p.dice.Int64N(most)
}

func (p *profile) deadline() falcon.Time {
	at := falcon.Time(math.MaxInt64)
	if p.dozeUntil != 0 {
		at = p.dozeUntil
	}
	if p.releaseAt != 0 {
		at = min(at, p.releaseAt)
	}
	return at
}

// dozes reports whether send queues are not looked at now.
func (p *profile) dozes(now falcon.Time) bool {
	if p.dozeUntil != 0 && now >= p.dozeUntil {
		p.dozeUntil = 0
	}
	return p.dozeUntil != 0
}

// stuck is dozes for who wants to look, which may begin a doze.
func (p *profile) stuck(now falcon.Time) bool {
	if p.dozes(now) {
		return true
	}
	if now < p.nextDoze {
		return false
	}
	p.did.dozes++
	p.dozeUntil = p.within(now, mostDoze)
	p.nextDoze = p.within(p.dozeUntil, mostAwake)
	return true
}

// hold reports whether a completion waits for others.
func (p *profile) hold(now falcon.Time) bool {
	if p.oneIn(4) {
		return false
	}
	p.did.holds++
	if p.releaseAt == 0 {
		p.releaseAt = p.within(now, mostHold)
	}
	return true
}

// releases reports whether completions that wait are due.
func (p *profile) releases(now falcon.Time) bool {
	if p.releaseAt == 0 || now < p.releaseAt {
		return false
	}
	p.releaseAt = 0
	return true
}

// adminDelay is until when the admin queue is left alone; 0: it is not.
func (p *profile) adminDelay(now falcon.Time) falcon.Time {
	if p.oneIn(2) {
		return 0
	}
	p.did.lateCommands++
	return p.within(now, mostCommand)
}

// event has an event wait, or another come for nothing. It reports whether it is
// taken care of.
func (p *profile) event(x *sabotage, e lateEvent) bool {
	now := x.f.shard.now
	if e.async != nil {
		at := now
		if p.oneIn(2) {
			at = p.within(now, mostLate)
		}
		p.lastAsync = max(p.lastAsync, at)
		if p.lastAsync <= now {
			return false
		}
		p.did.lateEvents++
		e.at = p.lastAsync
		x.later(e)
		return true
	}
	if p.oneIn(4) { // once more, for nothing
		p.did.spurious++
		again := e
		again.at = p.within(now, mostLate)
		x.later(again)
	}
	if p.oneIn(2) {
		p.did.lateEvents++
		e.at = p.within(now, mostLate)
		x.later(e)
		return true
	}
	return false
}

// acts is how often it did something.
func (p *profile) acts() uint64 {
	d := &p.did
	return d.dozes + d.holds + d.lateEvents + d.spurious + d.lateCommands
}

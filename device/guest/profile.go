package guest

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

	did Acts

	dozeUntil falcon.Time // send queues are not looked at
	nextDoze  falcon.Time // not before that
	releaseAt falcon.Time // completions that wait are written; 0: none wait
	lastAsync falcon.Time // when the newest asynchronous event that waits is due: they keep their order
}

// HostileProfile is the profile that there is.
const HostileProfile = "hostile"

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
func (p *profile) dozes(now falcon.Time) bool { return now < p.dozeUntil }

// awake ends a doze that is over. Until it is called there is a deadline: queues may wait for it.
func (p *profile) awake(now falcon.Time) {
	if !p.dozes(now) {
		p.dozeUntil = 0
	}
}

// stuck is dozes for who wants to look, which may begin a doze.
func (p *profile) stuck(now falcon.Time) bool {
	if p.dozes(now) {
		return true
	}
	if now < p.nextDoze {
		return false
	}
	p.did.Dozes++
	p.dozeUntil = p.within(now, mostDoze)
	p.nextDoze = p.within(p.dozeUntil, mostAwake)
	return true
}

// hold reports whether a completion waits for others.
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
	p.did.LateCommands++
	return p.within(now, mostCommand)
}

// event has an event wait, or another come for nothing. It reports whether it is
// taken care of.
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
	if p.oneIn(4) { // once more, for nothing
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
type Acts struct{ Dozes, Holds, LateEvents, Spurious, LateCommands uint64 }

// Sum is how often it did something.
func (a Acts) Sum() uint64 { return a.Dozes + a.Holds + a.LateEvents + a.Spurious + a.LateCommands }

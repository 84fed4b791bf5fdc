package rdma

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/fair"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// How QPs come to their turns: functions share by deficit round robin (package fair), the QPs of one
// by turns, so that a function gets the same with one QP or with a thousand, with small requests or
// with large ones.
//
//	Engine.active ─▶ f1 ─▶ f2 ─▶ …       each turn takes away what it issued
//	                 └▶ ready ─▶ q1 ─▶ q2
//
// A function that has not used up what is guaranteed to it goes first; its guarantee bounds what
// that can take. One whose rate is used up is out of the round until its bucket fills.

// opCost is what a packet takes of a deficit beside its data: small requests are not free.
const opCost = 512

// schedule is a function's place among the others.
type schedule struct {
	ready    list.List[QP] // QPs with work to issue or to flush, next turn first
	flow     fair.Flow[Function]
	rate     *credit.Bucket
	throttle timer.Handle // the rate is used up, until then
	credits  *credit.Node // of the function; nil: nothing is guaranteed to it
}

// covered reports whether the function has not used up what is guaranteed to it.
func (f *Function) covered() bool { return f.credits != nil && f.credits.Spare(credit.ReqPktTx) > 0 }

// enqueue gives a QP its place behind the others of its function, and the function its place among
// the others.
func (e *Engine) enqueue(q *QP) {
	f := q.fn
	f.ready.PushBack(&q.ready, q)
	e.enter(f)
}

func (e *Engine) enter(f *Function) {
	if !f.throttle.Armed() && !f.flow.Waits() {
		e.active.Enter(&f.flow, f, f.covered())
	}
}

// visit gives the function in front one turn. It reports false when there is none.
func (e *Engine) visit(now vtime.Time) bool {
	f := e.active.Next()
	if f == nil {
		return false
	}
	q := f.ready.First()
	switch {
	case q == nil: // its last QP left otherwise
		e.active.Settle(&f.flow, false, false)
		return true
	case f.rate.Limited() && f.Working():
		if at := f.rate.Ready(now); at > now {
			e.setAside(f, at)
			return true
		}
	}
	q.ready.Remove()
	if next := f.ready.First(); next != nil {
		next.prefetch() // comes while this one works
	}
	if q.turn(now) {
		f.ready.PushBack(&q.ready, q)
	}
	f.settle(now)
	if !f.flow.Waits() { // closed
		return true
	}
	e.active.Settle(&f.flow, !f.ready.Empty(), f.covered())
	return true
}

// SetWeight makes the function issue so many times what one of weight 1 does; 0 is 1.
func (f *Function) SetWeight(weight int) { f.flow.Weight = weight }

// spend books a packet of n bytes that the function issued.
func (f *Function) spend(n int) {
	f.flow.Charge(n + opCost)
	f.rate.Charge(n)
}

// setAside takes a function whose rate is used up out of the round, until it lets it go on.
func (e *Engine) setAside(f *Function, at vtime.Time) {
	f.flow.Leave()
	f.Account.RateWaits++
	e.CreditsChanged() // what its QPs were offered is for others now
	e.shared.Timers.Set(&f.throttle, rateReady{f}, at)
}

// rateReady brings a function back whose rate lets it go on.
type rateReady struct{ f *Function }

// Due implements verbs.Timed.
func (r rateReady) Due(vtime.Time) { r.f.e.enter(r.f) }

// unschedule takes a function out.
func (e *Engine) unschedule(f *Function) {
	f.flow.Leave()
	e.shared.Timers.Stop(&f.throttle)
}

// UseRate bounds what the function sends by a token bucket, which others may charge too.
func (f *Function) UseRate(b *credit.Bucket) { f.rate = b }

// UseCredits names the function's node of the credit tree, for what is guaranteed to it.
func (f *Function) UseCredits(n *credit.Node) { f.credits = n }

// RateChanged looks anew at a function that waits for its rate.
func (e *Engine) RateChanged(now vtime.Time, f *Function) {
	if f.throttle.Armed() {
		e.shared.Timers.Set(&f.throttle, rateReady{f}, now)
	}
}

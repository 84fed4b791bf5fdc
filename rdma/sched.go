package rdma

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/fair"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/rdma/verbs"
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
	f        *Function
	ready    list.List[verbs.QP] // QPs with work to issue or to flush, next turn first
	flow     fair.Flow[Function]
	rate     *credit.Bucket
	throttle timer.Handle // the rate is used up, until then
	credits  *credit.Node // of the function; nil: nothing is guaranteed to it
}

// covered reports whether the function has not used up what is guaranteed to it.
func (f *Function) covered() bool {
	return f.sched.credits != nil && f.sched.credits.Spare(credit.ReqPktTx) > 0
}

// Ready implements verbs.Scheduler: a QP gets its place behind the others of its function, and the
// function its place among the others.
func (s *schedule) Ready(q *verbs.QP) {
	s.ready.PushBack(&q.Queued, q)
	s.f.e.enter(s.f)
}

// May implements verbs.Scheduler.
func (s *schedule) May(now vtime.Time) bool { return s.flow.Left() && s.rate.Ready(now) <= now }

// Spend implements verbs.Scheduler.
func (s *schedule) Spend(n int) {
	s.flow.Charge(n + opCost)
	s.rate.Charge(n)
}

// AnswerAt implements verbs.Scheduler.
func (s *schedule) AnswerAt(now vtime.Time) vtime.Time { return s.rate.Ready(now) }

// Answered implements verbs.Scheduler.
func (s *schedule) Answered(n int) { s.rate.Charge(n) }

// Freed implements verbs.Scheduler.
func (s *schedule) Freed() { s.f.e.CreditsChanged() }

func (e *Engine) enter(f *Function) {
	if !f.sched.throttle.Armed() && !f.sched.flow.Waits() {
		e.active.Enter(&f.sched.flow, f, f.covered())
	}
}

// visit gives the function in front one turn. It reports false when there is none.
func (e *Engine) visit(now vtime.Time) bool {
	f := e.active.Next()
	if f == nil {
		return false
	}
	q := f.sched.ready.First()
	switch {
	case q == nil: // its last QP left otherwise
		e.active.Settle(&f.sched.flow, false, false)
		return true
	case f.sched.rate.Limited() && f.Working():
		if at := f.sched.rate.Ready(now); at > now {
			e.setAside(f, at)
			return true
		}
	}
	q.Queued.Remove()
	if next := f.sched.ready.First(); next != nil {
		next.Prefetch() // comes while this one works
	}
	if q.Turn(now) {
		f.sched.ready.PushBack(&q.Queued, q)
	}
	f.Settle(now)
	if !f.sched.flow.Waits() { // closed
		return true
	}
	e.active.Settle(&f.sched.flow, !f.sched.ready.Empty(), f.covered())
	return true
}

// SetWeight makes the function issue so many times what one of weight 1 does; 0 is 1.
func (f *Function) SetWeight(weight int) { f.sched.flow.Weight = weight }

// setAside takes a function whose rate is used up out of the round, until it lets it go on.
func (e *Engine) setAside(f *Function, at vtime.Time) {
	f.sched.flow.Leave()
	f.Account.RateWaits++
	e.CreditsChanged() // what its QPs were offered is for others now
	e.shared.Timers.Set(&f.sched.throttle, rateReady{f}, at)
}

// rateReady brings a function back whose rate lets it go on.
type rateReady struct{ f *Function }

// Due implements verbs.Timed.
func (r rateReady) Due(vtime.Time) { r.f.e.enter(r.f) }

// unschedule takes a function out.
func (e *Engine) unschedule(f *Function) {
	f.sched.flow.Leave()
	e.shared.Timers.Stop(&f.sched.throttle)
}

// UseRate bounds what the function sends by a token bucket, which others may charge too.
func (f *Function) UseRate(b *credit.Bucket) { f.sched.rate = b }

// UseCredits names the function's node of the credit tree, for what is guaranteed to it.
func (f *Function) UseCredits(n *credit.Node) { f.sched.credits = n }

// RateChanged looks anew at a function that waits for its rate.
func (e *Engine) RateChanged(now vtime.Time, f *Function) {
	if f.sched.throttle.Armed() {
		e.shared.Timers.Set(&f.sched.throttle, rateReady{f}, now)
	}
}

package rdma

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/fair"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// How QPs come to their turns: functions share by deficit round robin (package fair), the QPs of
// one by turns, so that a function gets the same with one QP or with a thousand, with small
// requests or with large ones.
//
//	scheduler.active ─▶ f1 ─▶ f2 ─▶ …       each turn takes away what it issued
//	                    └▶ ready ─▶ q1 ─▶ q2
//
// A function that has not used up what is guaranteed to it goes first; its guarantee bounds what
// that can take. One whose rate is used up is out of the round until its bucket fills.

// opCost is what a packet takes of a deficit beside its data: small requests are not free.
const opCost = 512

// scheduler gives functions their turns.
type scheduler struct {
	active fair.Round[schedule] // with QPs in their ready lists, next visit first
	timers *verbs.Timers
	wires  transport.Host // is told of credit that nobody wants
}

// schedule is a function's place among the others.
type schedule struct {
	of       *scheduler
	objects  *verbs.Objects
	ready    list.List[verbs.QP] // QPs with work to issue or to flush, next turn first
	flow     fair.Flow[schedule]
	rate     *credit.Bucket
	throttle timer.Handle // the rate is used up, until then
	credits  *credit.Node // of the function; nil: nothing is guaranteed to it
}

// covered reports whether the function has not used up what is guaranteed to it.
func (s *schedule) covered() bool {
	return s.credits != nil && s.credits.Spare(credit.ReqPktTx) > 0
}

// Ready implements verbs.Scheduler: a QP gets its place behind the others of its function, and the
// function its place among the others.
func (s *schedule) Ready(q *verbs.QP) {
	s.ready.PushBack(&q.Queued, q)
	s.enter()
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
func (s *schedule) Freed() { s.of.wires.CreditsChanged() }

// enter gives the function its place, unless its rate is used up.
func (s *schedule) enter() {
	if !s.throttle.Armed() && !s.flow.Waits() {
		s.of.active.Enter(&s.flow, s, s.covered())
	}
}

// leave takes the function out.
func (s *schedule) leave() {
	s.flow.Leave()
	s.of.timers.Stop(&s.throttle)
}

// setAside takes a function whose rate is used up out of the round, until it lets it go on.
func (s *schedule) setAside(at vtime.Time) {
	s.flow.Leave()
	s.objects.Account.RateWaits++
	s.Freed() // what its QPs were offered is for others now
	s.of.timers.Set(&s.throttle, s, at)
}

// Due implements verbs.Timed: the rate lets the function go on.
func (s *schedule) Due(vtime.Time) { s.enter() }

// rateChanged looks anew at a function that waits for its rate.
func (s *schedule) rateChanged(now vtime.Time) {
	if s.throttle.Armed() {
		s.of.timers.Set(&s.throttle, s, now)
	}
}

// visit gives the function in front one turn. There is one.
func (r *scheduler) visit(now vtime.Time) {
	s := r.active.Next()
	q := s.ready.First()
	if q == nil { // its last QP left otherwise
		r.active.Settle(&s.flow, false, false)
		return
	}
	if at := s.rate.Ready(now); at > now && s.objects.Working() {
		s.setAside(at)
		return
	}
	q.Queued.Remove()
	if next := s.ready.First(); next != nil {
		next.Prefetch() // comes while this one works
	}
	if q.Turn(now) {
		s.ready.PushBack(&q.Queued, q)
	}
	s.objects.Settle(now)
	if !s.flow.Waits() { // closed
		return
	}
	r.active.Settle(&s.flow, !s.ready.Empty(), s.covered())
}

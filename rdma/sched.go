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

// How QPs get their turns: functions share by deficit round robin (package fair), the QPs of one
// function by round robin. So a function gets the same share with one QP or a thousand, with small
// requests or large ones.
//
//	scheduler.active ─▶ f1 ─▶ f2 ─▶ …       each turn takes away what it issued
//	                    └▶ ready ─▶ q1 ─▶ q2
//
// A function that has not used up its guarantee goes first; the guarantee limits how much that can
// be. A function that has used up its rate is out of the round until its bucket fills.

// opCost is charged for a packet besides its data, so that small requests are not free.
const opCost = 512

// scheduler gives functions their turns.
type scheduler struct {
	active fair.Round[schedule] // with QPs in their ready lists, next visit first
	timers *verbs.Timers
	wires  transport.Host // receives credit that no QP wants
}

// schedule is a function's entry in the scheduler.
type schedule struct {
	of       *scheduler
	objects  *verbs.Objects
	ready    list.List[verbs.QP] // QPs with work to issue or to flush, next turn first
	flow     fair.Flow[schedule]
	rate     *credit.Bucket
	throttle timer.Handle // armed while the rate is used up
	credits  *credit.Node // of the function; nil: it has no guarantee
}

// covered reports whether the function has not used up its guarantee.
func (s *schedule) covered() bool {
	return s.credits != nil && s.credits.Spare(credit.ReqPktTx) > 0
}

// Ready implements verbs.Scheduler: it queues the QP behind the others of its function, and the
// function among the others.
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

// enter queues the function, unless its rate is used up.
func (s *schedule) enter() {
	if !s.throttle.Armed() && !s.flow.Waits() {
		s.of.active.Enter(&s.flow, s, s.covered())
	}
}

// leave removes the function from the scheduler.
func (s *schedule) leave() {
	s.flow.Leave()
	s.of.timers.Stop(&s.throttle)
}

// setAside removes a function whose rate is used up from the round until the time at.
func (s *schedule) setAside(at vtime.Time) {
	s.flow.Leave()
	s.objects.Account.RateWaits++
	s.Freed() // credit offered to its QPs is for others now
	s.of.timers.Set(&s.throttle, s, at)
}

// Due implements verbs.Timed: the rate lets the function continue.
func (s *schedule) Due(vtime.Time) { s.enter() }

// rateChanged lets a function that waits for its rate try again now.
func (s *schedule) rateChanged(now vtime.Time) {
	if s.throttle.Armed() {
		s.of.timers.Set(&s.throttle, s, now)
	}
}

// visit gives a turn to the first function of the round, which must not be empty.
func (r *scheduler) visit(now vtime.Time) {
	s := r.active.Next()
	q := s.ready.First()
	if q == nil { // its last QP left the list in another way
		r.active.Settle(&s.flow, false, false)
		return
	}
	if at := s.rate.Ready(now); at > now && s.objects.Working() {
		s.setAside(at)
		return
	}
	q.Queued.Remove()
	if next := s.ready.First(); next != nil {
		next.Prefetch() // its memory is fetched while this one works
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

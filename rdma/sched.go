package rdma

import (
	"math"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
)

// How QPs come to their turns: functions share by deficit round robin (Shreedhar and Varghese
// 1995), the QPs of one by turns, so that a function gets the same with one QP or with a thousand,
// with small requests or with large ones.
//
//	Engine.active ─▶ f1 ─▶ f2 ─▶ …       each visit adds Config.Quantum, times its weight, to the function's deficit,
//	                 │                   each turn takes away what it issued
//	                 └▶ ready ─▶ q1 ─▶ q2
//
// A function that has not used up what is guaranteed to it enters in front; its guarantee bounds
// what that can take.
//
//	Engine.throttled: functions whose rate is used up, until their bucket fills

// opCost is what a packet takes of a deficit beside its data: small requests are not free.
const opCost = 512

// schedule is a function's place among the others.
type schedule struct {
	ready   list[QP] // QPs with work to issue or to flush, next turn first
	deficit int
	weight  int // times the quantum
	place   placement
	prev    *Function // in active
	next    *Function
	rate    *credit.Bucket
	credits *credit.Node // of the function; nil: nothing is guaranteed to it
	readyAt falcon.Time  // throttled: when the bucket lets something through
}

type placement uint8

const (
	nowhere placement = iota
	isActive
	isThrottled
)

// functionList is a queue of functions linked through themselves.
type functionList struct{ head, tail *Function }

func (s *functionList) push(f *Function) {
	f.place = isActive
	if f.credits != nil && f.credits.Spare(credit.ReqPktTx) > 0 {
		f.prev, f.next = nil, s.head
		if s.head != nil {
			s.head.prev = f
		} else {
			s.tail = f
		}
		s.head = f
		return
	}
	f.prev, f.next = s.tail, nil
	if s.tail != nil {
		s.tail.next = f
	} else {
		s.head = f
	}
	s.tail = f
}

func (s *functionList) remove(f *Function) {
	if f.prev != nil {
		f.prev.next = f.next
	} else {
		s.head = f.next
	}
	if f.next != nil {
		f.next.prev = f.prev
	} else {
		s.tail = f.prev
	}
	f.prev, f.next = nil, nil
	f.place = nowhere
}

// enqueue gives a QP its place behind the others of its function, and the function its place among
// the others.
func (e *Engine) enqueue(q *QP) {
	f := q.fn
	f.ready.push(&q.ready)
	if f.place == nowhere {
		e.active.push(f)
	}
}

// visit gives the function in front one turn. It reports false when there is none.
func (e *Engine) visit(now falcon.Time) bool {
	f := e.active.head
	if f == nil {
		return false
	}
	l := f.ready.head
	switch {
	case l == nil: // its last QP left otherwise
		e.active.remove(f)
		f.deficit = 0
		return true
	case f.rate.Limited() && f.Working():
		if at := f.rate.Ready(now); at > now {
			e.throttle(f, at)
			return true
		}
	}
	if f.deficit <= 0 {
		f.deficit += f.weight * e.cfg.Quantum
		if f.deficit <= 0 { // it still pays for a turn that was longer
			e.active.remove(f)
			e.active.push(f)
			return true
		}
	}
	l.remove()
	if next := f.ready.head; next != nil {
		next.of.prefetch() // comes while this one works
	}
	if l.of.turn(now) {
		f.ready.push(l)
	}
	f.settle(now)
	if f.place != isActive { // closed
		return true
	}
	if f.ready.head == nil {
		e.active.remove(f)
		f.deficit = min(f.deficit, 0)
	} else if f.deficit <= 0 {
		e.active.remove(f)
		e.active.push(f)
	}
	return true
}

// SetWeight makes the function issue so many times what one of weight 1 does; 0 is 1.
func (f *Function) SetWeight(weight int) { f.weight = max(weight, 1) }

// spend books a packet of n bytes that the function issued.
func (f *Function) spend(n int) {
	f.deficit -= n + opCost
	f.rate.Charge(n)
}

// throttle sets a function aside until its rate lets it go on.
func (e *Engine) throttle(f *Function, at falcon.Time) {
	e.active.remove(f)
	f.place, f.readyAt = isThrottled, at
	f.stats.RateWaits++
	if e.falcon != nil {
		e.falcon.CreditsChanged() // what its QPs were offered is for others now
	}
	e.throttled = append(e.throttled, f)
	e.throttledUntil = min(e.throttledUntil, at)
}

// unthrottle brings back the functions whose time has come.
func (e *Engine) unthrottle(now falcon.Time) {
	if now < e.throttledUntil {
		return
	}
	rest := e.throttled[:0]
	e.throttledUntil = math.MaxInt64
	for _, f := range e.throttled {
		if f.readyAt <= now {
			e.active.push(f)
			continue
		}
		rest = append(rest, f)
		e.throttledUntil = min(e.throttledUntil, f.readyAt)
	}
	clear(e.throttled[len(rest):])
	e.throttled = rest
}

// unschedule takes a function out.
func (e *Engine) unschedule(f *Function) {
	switch f.place {
	case isActive:
		e.active.remove(f)
	case isThrottled:
		for i, g := range e.throttled {
			if g == f {
				e.throttled = append(e.throttled[:i], e.throttled[i+1:]...)
				break
			}
		}
		f.place = nowhere
	}
}

// UseRate bounds what the function sends by a token bucket, which others may charge too.
func (f *Function) UseRate(b *credit.Bucket) { f.rate = b }

// UseCredits names the function's node of the credit tree, for what is guaranteed to it.
func (f *Function) UseCredits(n *credit.Node) { f.credits = n }

// RateChanged looks anew at a function that waits for its rate.
func (e *Engine) RateChanged(now falcon.Time, f *Function) {
	if f.place == isThrottled {
		f.readyAt, e.throttledUntil = now, now
	}
}

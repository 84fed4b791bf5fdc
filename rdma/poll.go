package rdma

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// A send queue with the event index is in one of three places:
//
//	        work found                     empty
//	ready ◀───────────── polled ◀──────────────────── ready
//	  ▲                     │ PollTime over, or Arm
//	  └──── doorbell ──── armed
//
// While it is polled the event index in its header stays behind and the driver sends no doorbell
// (DRV-604): the producer index in memory is the doorbell. Arming moves the event index up and
// looks once more (DEV-607). Receive queues need no polling: they are read when a message wants
// one.

// pollQuantum is how many queues one Poll looks at; those that were not come first the next time.
const pollQuantum = 64

// watch is called when the send queue is empty: it is polled for a while, or armed at once. It
// reports whether there is an entry after all.
func (q *QP) watch(now vtime.Time) (more bool) {
	if !q.fn.EventIndex() {
		return q.sq.Sleep()
	}
	q.sq.Commit()
	q.pollUntil = now + q.fn.e.cfg.PollTime
	q.fn.e.polled.PushBack(&q.polled, q)
	return false
}

// Poll looks at send queues that ran empty a short while ago, each in its turn, and arms those that
// stayed empty. It reports whether one had work, which the next Run does.
func (e *Engine) Poll(now vtime.Time) (found bool) {
	last := e.polled.Last()
	for range pollQuantum {
		q := e.polled.First()
		if q == nil {
			break
		}
		q.polled.Remove()
		n, ok := q.sq.Poll()
		switch {
		case !ok:
		case n > 0 || now >= q.pollUntil && q.sq.Sleep():
			found = true
			if q.fn.Trace != nil {
				q.noteEntries(trace.Found, q.sq.Producer())
			}
			q.wake()
		case now < q.pollUntil:
			e.polled.PushBack(&q.polled, q)
		}
		q.fn.settle(now)
		if q == last {
			break
		}
	}
	return found
}

// Arm asks for a doorbell at the next entry of every queue that is polled. It is called before the
// shard stops looking, and reports whether one had work meanwhile.
func (e *Engine) Arm(now vtime.Time) (found bool) {
	for q := e.polled.First(); q != nil; q = e.polled.First() {
		q.polled.Remove()
		if q.sq.Sleep() {
			found = true
			if q.fn.Trace != nil {
				q.noteEntries(trace.Found, q.sq.Producer())
			}
			q.wake()
		}
		q.fn.settle(now)
	}
	return found
}

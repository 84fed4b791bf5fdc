package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// With the event index, a send queue is in one of three states:
//
//	        work found                     empty
//	ready ◀───────────── polled ◀──────────────────── ready
//	  ▲                     │ PollTime over, or Arm
//	  └──── doorbell ──── armed
//
// While a queue is polled, the event index in its header stays behind, so the driver sends no
// doorbell (DRV-604); the producer index in memory takes the doorbell's place. Arming advances the
// event index and checks the queue once more (DEV-607). Receive queues need no polling: they are
// read when a message needs one.

// PollQuantum limits how many queues one Poll checks. The others come first the next time.
const PollQuantum = 64

// watch is called when the send queue is empty. The queue is polled for a while, or armed at once.
// watch reports whether there is an entry after all.
func (s *requester) watch(now vtime.Time) (more bool) {
	q := s.q
	if !q.owner.eventIndex {
		return s.sq.Sleep()
	}
	s.sq.Commit()
	s.pollUntil = now + q.shared.PollTime
	q.shared.polled.PushBack(&s.polled, q)
	return false
}

// Poll checks send queues that became empty a short while ago, in turn, and arms those that have
// stayed empty for PollTime. It reports whether one had work, which the next Run does.
func (s *Shared) Poll(now vtime.Time) (found bool) {
	last := s.polled.Last()
	for range PollQuantum {
		q := s.polled.First()
		if q == nil {
			break
		}
		q.polled.Remove()
		n, ok := q.sq.Poll()
		switch {
		case !ok:
		case n > 0 || now >= q.pollUntil && q.sq.Sleep():
			found = true
			if q.owner.Trace != nil {
				q.noteEntries(trace.Found, q.sq.Producer())
			}
			q.wake()
		case now < q.pollUntil:
			s.polled.PushBack(&q.polled, q)
		}
		q.in.Settle(now)
		if q == last {
			break
		}
	}
	return found
}

// Arm requests a doorbell at the next entry of every polled queue. It is called before the shard
// stops polling, and reports whether a queue has got work meanwhile.
func (s *Shared) Arm(now vtime.Time) (found bool) {
	for q := s.polled.First(); q != nil; q = s.polled.First() {
		q.polled.Remove()
		if q.sq.Sleep() {
			found = true
			if q.owner.Trace != nil {
				q.noteEntries(trace.Found, q.sq.Producer())
			}
			q.wake()
		}
		q.in.Settle(now)
	}
	return found
}

// CloseLingering closes the connections of failed queue pairs whose linger time is over.
func (s *Shared) CloseLingering(now vtime.Time) {
	for q := s.lingering.First(); q != nil && q.lingerUntil <= now; q = s.lingering.First() {
		q.closeConn(now)
	}
}

// Deadline returns when the next timer fires or CloseLingering next has something to do.
func (s *Shared) Deadline() vtime.Time {
	at := s.Timers.Deadline()
	if q := s.lingering.First(); q != nil {
		at = min(at, q.lingerUntil)
	}
	return at
}

// EachPolled calls f for the queue pairs whose send queue is polled, next first.
func (s *Shared) EachPolled(f func(*QP)) {
	for q := s.polled.First(); q != nil; q = q.polled.Next() {
		f(q)
	}
}

// Lingering returns how many failed queue pairs still have their connection.
func (s *Shared) Lingering() (n int) {
	for q := s.lingering.First(); q != nil; q = q.lingering.Next() {
		n++
	}
	return n
}

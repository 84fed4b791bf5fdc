package verbs

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

// PollQuantum is how many queues one Poll looks at; those that were not come first the next time.
const PollQuantum = 64

// watch is called when the send queue is empty: it is polled for a while, or armed at once. It
// reports whether there is an entry after all.
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

// Poll looks at send queues that ran empty a short while ago, each in its turn, and arms those that
// stayed empty. It reports whether one had work, which the next Run does.
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

// Arm asks for a doorbell at the next entry of every queue that is polled. It is called before the
// shard stops looking, and reports whether one had work meanwhile.
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

// CloseLingering closes the connections of failed queue pairs that had their time.
func (s *Shared) CloseLingering(now vtime.Time) {
	for q := s.lingering.First(); q != nil && q.lingerUntil <= now; q = s.lingering.First() {
		q.closeConn(now)
	}
}

// Deadline is when a timer fires or CloseLingering has something to do next.
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

// Lingering is how many failed queue pairs keep their connection.
func (s *Shared) Lingering() (n int) {
	for q := s.lingering.First(); q != nil; q = q.lingering.Next() {
		n++
	}
	return n
}

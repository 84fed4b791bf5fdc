package verbs

import (
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/pool"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// Shared holds what the functions of one shard use together; one goroutine owns all of them.
type Shared struct {
	Timers Timers
	Bounds

	polled    list.List[QP] // QPs whose send queue became empty a short while ago
	lingering list.List[QP] // failed QPs whose connection is still open, oldest first
	sends     pool.Pool[SendWR]

	entry    [4096]byte // one queue entry, as read from guest memory
	cqe      [abi.CQESize]byte
	datagram Datagram
	address  abi.DatagramWQE // address vector of the current entry
}

// Bounds limits how much queue pairs do at a time, and for how long.
type Bounds struct {
	TurnOps   int        // work requests one QP starts per turn
	TurnBytes int        // data bytes one QP issues per turn
	Linger    vtime.Time // how long a failed QP keeps its connection to tell the peer
	PollTime  vtime.Time // how long an empty send queue is polled before it is armed
}

// Scheduler gives the queue pairs of a function their turns.
type Scheduler interface {
	// Ready queues q for a call of QP.Turn, because it has something to do.
	Ready(q *QP)
	// May reports whether the function may issue another packet now. Spend charges one of n bytes.
	May(now vtime.Time) bool
	Spend(n int)
	// AnswerAt returns when the function's rate lets it answer a READ or atomic. Answered charges
	// the answer.
	AnswerAt(now vtime.Time) vtime.Time
	Answered(n int)
	// Freed reports that a queue pair does not want credit that it may have been offered.
	Freed()
}

// Timed is the owner of a timer. Due is called once, when the timer is due.
type Timed interface{ Due(now vtime.Time) }

// Timers holds the timers of all objects of an engine.
type Timers struct{ timer.Wheel[Timed] }

// Set arms t, or moves it.
func (s *Timers) Set(t *timer.Handle, owner Timed, at vtime.Time) { s.Arm(t, owner, 0, at) }

// Run calls the owners of all timers that are due.
func (s *Timers) Run(now vtime.Time) {
	if s.Idle() {
		return
	}
	for owner, _, ok := s.Expire(now); ok; owner, _, ok = s.Expire(now) {
		owner.Due(now)
	}
}

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
		n, ok := q.send.queue.Poll()
		switch {
		case !ok:
		case n > 0 || now >= q.pollUntil && q.send.queue.Sleep():
			found = true
			if q.owner.Trace != nil {
				q.send.noteEntries(trace.Found, q.send.queue.Producer())
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
		if q.send.queue.Sleep() {
			found = true
			if q.owner.Trace != nil {
				q.send.noteEntries(trace.Found, q.send.queue.Producer())
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

package rdma

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
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

// UseFeatures says which features are in use. Without abi.FeatureEventIndex every doorbell is a
// record, and queues are looked at when one comes; without abi.FeatureArmWord completion queues are
// armed by records only; without abi.FeatureExtendedVerbs the driver hears of failures by
// EventQPFatal alone, and of nothing that is no failure.
func (f *Function) UseFeatures(bits uint64) {
	f.eventIndex = bits&abi.FeatureEventIndex != 0
	f.armWord = bits&abi.FeatureArmWord != 0
	f.extended = bits&abi.FeatureExtendedVerbs != 0
}

// watch is called when the send queue is empty: it is polled for a while, or armed at once. It
// reports whether there is an entry after all.
func (q *QP) watch(now falcon.Time) (more bool) {
	if !q.fn.eventIndex {
		return q.sq.sleep()
	}
	q.sq.commit()
	q.pollUntil = now + q.fn.e.cfg.PollTime
	q.fn.e.polled.push(&q.polled)
	return false
}

// Poll looks at send queues that ran empty a short while ago, each in its turn, and arms those that
// stayed empty. It reports whether one had work, which the next Run does.
func (e *Engine) Poll(now falcon.Time) (found bool) {
	last := e.polled.tail
	for range pollQuantum {
		l := e.polled.head
		if l == nil {
			break
		}
		l.remove()
		q := l.of
		n, err := q.sq.ring.Poll()
		switch {
		case err != nil:
			q.sq.fault(err)
		case n > 0 || now >= q.pollUntil && q.sq.sleep():
			found = true
			if q.fn.trace != nil {
				q.noteEntries(trace.Found, q.sq.ring.Producer())
			}
			q.wake()
		case now < q.pollUntil:
			e.polled.push(l)
		}
		q.fn.settle(now)
		if l == last {
			break
		}
	}
	return found
}

// Arm asks for a doorbell at the next entry of every queue that is polled. It is called before the
// shard stops looking, and reports whether one had work meanwhile.
func (e *Engine) Arm(now falcon.Time) (found bool) {
	for l := e.polled.head; l != nil; l = e.polled.head {
		l.remove()
		if l.of.sq.sleep() {
			found = true
			if l.of.fn.trace != nil {
				l.of.noteEntries(trace.Found, l.of.sq.ring.Producer())
			}
			l.of.wake()
		}
		l.of.fn.settle(now)
	}
	return found
}

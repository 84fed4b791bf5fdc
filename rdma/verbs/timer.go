package verbs

import (
	"container/heap"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

// Timer is a moment at which its owner has something to do. Zero it is not set; it must not be
// copied while it is.
type Timer struct {
	at    vtime.Time
	owner Timed
	place int // in the heap, from 1; 0: not set
}

// Armed reports whether the timer is set.
func (t *Timer) Armed() bool { return t.place != 0 }

// Timed is what owns timers: Due is called once, when the time has come.
type Timed interface{ Due(now vtime.Time) }

// Timers are all that are set.
type Timers struct{ heap timerHeap }

// Len is how many are set.
func (s *Timers) Len() int { return len(s.heap) }

// Set arms t, or moves it.
func (s *Timers) Set(t *Timer, owner Timed, at vtime.Time) {
	t.owner, t.at = owner, at
	if t.place != 0 {
		heap.Fix(&s.heap, t.place-1)
		return
	}
	heap.Push(&s.heap, t)
}

// Stop disarms t.
func (s *Timers) Stop(t *Timer) {
	if t.place != 0 {
		heap.Remove(&s.heap, t.place-1)
	}
}

// Run calls the owners of those that are due.
func (s *Timers) Run(now vtime.Time) {
	for len(s.heap) > 0 && s.heap[0].at <= now {
		heap.Pop(&s.heap).(*Timer).owner.Due(now)
	}
}

// Deadline is when the first of them is due, vtime.Never if none is set.
func (s *Timers) Deadline() vtime.Time {
	if len(s.heap) == 0 {
		return vtime.Never
	}
	return s.heap[0].at
}

// timerHeap has the first one due at the top.
type timerHeap []*Timer

// Len implements heap.Interface.
func (s timerHeap) Len() int { return len(s) }

// Less implements heap.Interface.
func (s timerHeap) Less(i, j int) bool { return s[i].at < s[j].at }

// Swap implements heap.Interface.
func (s timerHeap) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].place, s[j].place = i+1, j+1
}

// Push implements heap.Interface.
func (s *timerHeap) Push(x any) {
	t := x.(*Timer)
	*s = append(*s, t)
	t.place = len(*s)
}

// Pop implements heap.Interface.
func (s *timerHeap) Pop() any {
	n := len(*s) - 1
	t := (*s)[n]
	(*s)[n] = nil
	*s = (*s)[:n]
	t.place = 0
	return t
}

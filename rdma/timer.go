package rdma

import (
	"container/heap"

	"github.com/falcon-vnic/vnic/falcon"
)

// timer is a moment at which its owner has something to do. Zero it is not set; it must not be
// copied while it is.
type timer struct {
	at    falcon.Time
	owner timed
	place int // in the heap, from 1; 0: not set
}

// timed is what owns timers: due is called once, when the time has come.
type timed interface{ due(now falcon.Time) }

// timers are all that are set, the first one due at the top.
type timers []*timer

// set arms t, or moves it.
func (s *timers) set(t *timer, owner timed, at falcon.Time) {
	t.owner, t.at = owner, at
	if t.place != 0 {
		heap.Fix(s, t.place-1)
		return
	}
	heap.Push(s, t)
}

// stop disarms t.
func (s *timers) stop(t *timer) {
	if t.place != 0 {
		heap.Remove(s, t.place-1)
	}
}

// run calls the owners of those that are due.
func (s *timers) run(now falcon.Time) {
	for len(*s) > 0 && (*s)[0].at <= now {
		heap.Pop(s).(*timer).owner.due(now)
	}
}

// Len implements heap.Interface.
func (s timers) Len() int { return len(s) }

// Less implements heap.Interface.
func (s timers) Less(i, j int) bool { return s[i].at < s[j].at }

// Swap implements heap.Interface.
func (s timers) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].place, s[j].place = i+1, j+1
}

// Push implements heap.Interface.
func (s *timers) Push(x any) {
	t := x.(*timer)
	*s = append(*s, t)
	t.place = len(*s)
}

// Pop implements heap.Interface.
func (s *timers) Pop() any {
	n := len(*s) - 1
	t := (*s)[n]
	(*s)[n] = nil
	*s = (*s)[:n]
	t.place = 0
	return t
}

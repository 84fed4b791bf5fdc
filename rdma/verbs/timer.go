package verbs

import (
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

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

package tcp

import "time"

// Break makes Next panic, as gVisor might in a call.
func (s *Stack) Break() { s.again(&bomb{}) }

// BreakTimer makes one of gVisor's timers panic.
func (s *Stack) BreakTimer() {
	s.clock.AfterFunc(time.Nanosecond, func() { panic("broken by a test") })
}

type bomb struct{ isMarked bool }

func (b *bomb) mark() *bool { return &b.isMarked }

func (b *bomb) serve() (Event, bool) { panic("broken by a test") }

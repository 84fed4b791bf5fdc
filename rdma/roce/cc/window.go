package cc

import "github.com/falcon-vnic/vnic/internal/vtime"

var _ = register("window", Window{})

// Window limits the packets in flight. The limit grows by one in each round trip without a loss,
// and halves with a loss. A notification counts as a loss, once within a while; peers need not send
// any. If nothing came back for a while, the limit falls to the minimum, and grows with every
// answer up to half of what it was (slow start, RFC 5681 §3.1), because usually the peer was only
// busy.
type Window struct{}

// sameTrouble is the time within which notifications count as one congestion event.
const sameTrouble vtime.Time = 1e6

// Init implements Algorithm.
func (Window) Init(s *State) { *s = State{Window: FirstWindow, slow: MostWindow} }

// Sent implements Algorithm.
func (Window) Sent(*State, vtime.Time, int) {}

// Answered implements Algorithm.
func (Window) Answered(s *State, _ vtime.Time, packets, _ int) {
	if s.Window < s.slow {
		s.Window = min(s.Window+packets, s.slow)
		return
	}
	if s.acked += packets; s.acked >= s.Window {
		s.acked, s.Window = 0, min(s.Window+1, MostWindow)
	}
}

// Lost implements Algorithm.
func (Window) Lost(s *State, _ vtime.Time) {
	s.Window = max(s.Window/2, LeastWindow)
	s.slow, s.acked = s.Window, 0
}

// Collapsed implements Algorithm.
func (Window) Collapsed(s *State, _ vtime.Time) {
	if s.Window > LeastWindow { // otherwise it is the same event
		s.slow = s.Window / 2
	}
	s.Window, s.acked = LeastWindow, 0
}

// Notified implements Algorithm.
func (w Window) Notified(s *State, now vtime.Time) {
	if s.notifiedAt == 0 || now >= s.notifiedAt+sameTrouble {
		s.notifiedAt = now
		w.Lost(s, now)
	}
}

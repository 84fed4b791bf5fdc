package cc

// Widths of the PLB counters (Falcon §10.4), which have 24 bits of per-connection state.
const (
	plbMaxCount    = 1<<10 - 1
	plbMaxAttempts = 1<<4 - 1
)

// plb implements ComputePlb of Falcon §10.4. target is the delay target of this event, window the
// smaller of both windows before it. A round ends when a window's worth of packets was
// acknowledged. Enough congested rounds in a row request a new path.
func (w *Swift) plb(s *State, ev *Event, target uint32, window float64) (repath bool) {
	acked := min(uint32(s.PLBAcked)+uint32(ev.Acked), plbMaxCount)
	congested := uint32(s.PLBCongested)
	if float64(s.Delay) > float64(target)*w.p.PLBTargetMultiple {
		congested = min(congested+uint32(ev.Acked), plbMaxCount)
	}
	if float64(acked) < window {
		s.PLBAcked, s.PLBCongested = uint16(acked), uint16(congested)
		return false
	}
	s.PLBAcked, s.PLBCongested = 0, 0
	if acked == 0 || float64(congested)/float64(acked) < w.p.PLBThreshold {
		s.PLBAttempts = 0
		return false
	}
	s.PLBAttempts = min(s.PLBAttempts+1, plbMaxAttempts)
	if s.PLBAttempts < w.p.PLBAttempts {
		return false
	}
	s.PLBAttempts = 0
	return true
}

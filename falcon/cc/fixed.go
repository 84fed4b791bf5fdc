package cc

// Fixed keeps the windows and the timeout constant and only measures: for links whose capacity is
// known, and for separating congestion control from everything else in a test.
type Fixed struct {
	Fcwnd uint32 // packets · 1024
	Ncwnd uint32 // packets
	RTO   uint32 // FU
}

var _ Algorithm = Fixed{}

// Init implements Algorithm.
func (f Fixed) Init(s *State) {
	*s = State{Fcwnd: f.Fcwnd, Ncwnd: f.Ncwnd, RTO: f.RTO, Select: DelayFabric}
}

// Update implements Algorithm: RTT and Delay follow the last sample, the rest stays.
func (f Fixed) Update(s *State, ev *Event) Result {
	if ev.Kind != Retransmit {
		s.RTT, s.Delay = ev.RTT(), ev.Delay(s.Select)
	}
	return Result{}
}

package cc

import (
	"time"

	"github.com/falcon-vnic/vnic/internal/param"
)

var _ = register(Definition{
	Name: "fixed", About: "constant windows and timeout; measures only",
	Parameters: func(t Timing) Parameters {
		p := &FixedParams{Fcwnd: 32, Ncwnd: 64, RTO: HardwareParams().InitialRTO}
		if t == Software {
			p.RTO = SoftwareParams().InitialRTO
		}
		return p
	},
})

// FixedParams configures Fixed.
type FixedParams struct {
	Fcwnd float64 // packets
	Ncwnd uint32  // packets
	RTO   uint32  // FU
}

// New implements Parameters.
func (p *FixedParams) New() Algorithm {
	return Fixed{Fcwnd: toFixed(p.Fcwnd), Ncwnd: p.Ncwnd, RTO: p.RTO}
}

// Keys implements Parameters.
func (p *FixedParams) Keys() []param.Key {
	return []param.Key{
		param.Number("fcwnd", "fabric window, packets", &p.Fcwnd, 0.001, float64(MaxFcwnd)/One),
		param.Number("ncwnd", "NIC window, packets", &p.Ncwnd, 1, MaxNcwnd),
		falconTime("rto", "retransmission timeout", &p.RTO, time.Microsecond, MaxTime),
	}
}

// Fixed keeps the windows and the timeout constant and only measures. It is for links whose
// capacity is known, and for tests that must separate congestion control from everything else.
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

// Update implements Algorithm: RTT and Delay are the last sample, the rest does not change.
func (f Fixed) Update(s *State, ev *Event) Result {
	if ev.Kind != Retransmit {
		s.RTT, s.Delay = ev.RTT(), ev.Delay(s.Select)
	}
	return Result{}
}

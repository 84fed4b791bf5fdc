package cc

// DelaySelect chooses the congestion signal (Falcon §10.6.2.1, delay_select).
type DelaySelect uint8

// Delay signals. Forward and Reverse need synchronised clocks.
const (
	DelayFull    DelaySelect = iota // T4−T1
	DelayFabric                     // (T4−T1)−(T3−T2)
	DelayForward                    // T2−T1
	DelayReverse                    // T4−T3
)

// RTT returns T4−T1 of an ACK or NACK event, FU.
func (ev *Event) RTT() uint32 { return since(ev.T4, ev.T1) }

// Delay returns the selected delay signal, FU. The turnaround T3−T2 is only claimed by the peer. If
// it exceeds the round trip (rounding of a very short one, or a lie), the fabric delay is 0 instead
// of wrapping to a huge value.
func (ev *Event) Delay(sel DelaySelect) uint32 {
	switch sel {
	case DelayFabric:
		rtt := ev.RTT()
		return rtt - min(since(ev.T3, ev.T2), rtt)
	case DelayForward:
		return since(ev.T2, ev.T1)
	case DelayReverse:
		return since(ev.T4, ev.T3)
	default:
		return ev.RTT()
	}
}

// smooth implements GetSmoothed of Falcon §10.3.4; alpha is the weight of the old value.
func smooth(alpha float64, old, sample uint32) uint32 {
	return min(uint32(float64(old)*alpha+float64(sample)*(1-alpha)), TimeMask)
}

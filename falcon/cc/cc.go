package cc

// Units of the interface (Falcon §10.6.2).
const (
	FractionBits = 10                     // fraction bits of fcwnd
	One          = 1 << FractionBits      // fcwnd of one packet
	MaxFcwnd     = 1<<(11+10) - 1         // 2047.999 packets
	MaxNcwnd     = 1<<11 - 1              // packets
	TimeMask     = 1<<24 - 1              // FU timestamps and durations are 24 bits wide
	MaxIPG       = 1<<16 - 1              // TU, ≈ 33.5 ms
	FUPicos      = 1 << 17                // one FU in picoseconds
	TUNanos      = 512                    // one TU in nanoseconds
	fuToTU       = 131.072 / float64(512) // 0.256
)

// Direction is the direction of the last ncwnd change.
type Direction uint8

// Directions, with the encoding of Falcon §10.6.2.1.
const (
	Decrease Direction = 0
	Increase Direction = 1
)

// State is the congestion state of one connection. Algorithm.Init fills it.
type State struct {
	Fcwnd uint32 // fabric window, packets · 1024
	Ncwnd uint32 // NIC window, packets
	RTO   uint32 // retransmission timeout, FU
	RTT   uint32 // smoothed round trip, FU
	Delay uint32 // smoothed delay signal, FU

	FabricMarker uint32    // FU: within an RTT after it fcwnd may not fall
	NICMarker    uint32    // FU: within an RTT after it ncwnd may not move on in the same direction
	Direction    Direction // of the last ncwnd change

	BaseDelay uint32      // FU: delay target of an uncongested path
	Select    DelaySelect // which delay is the congestion signal

	PLBAcked     uint16 // packets acknowledged in the current PLB round
	PLBCongested uint16 // of PLBAcked: packets that saw congestion
	PLBAttempts  uint8  // consecutive congested rounds
}

// Kind is the kind of an event.
type Kind uint8

// Kinds of event (Falcon §10.6.2.1). The resource-exhaustion NACK is a separate kind, because
// §10.3.3 treats it separately.
const (
	Ack Kind = iota
	Nack
	NackResource
	Retransmit
)

// Event is one input to the Rate Update Engine.
type Event struct {
	Kind            Kind
	Hops            uint8  // forward hop count, 0..15
	RxOccupancy     uint8  // quantised receive buffer level, 0..31
	RetransmitCount uint8  // Retransmit: successive timeouts of the packet, from 1
	EackDrop        bool   // the EACK's bitmaps show a loss, or the NACK reports one
	EackOwn         bool   // the EACK reports a drop outside the receive window
	Acked           uint16 // packets acknowledged since the last event
	ECN             uint16 // packets with a congestion mark that the peer has received so far, 14 bits, wraps
	T1, T2, T3, T4  uint32 // Ack and Nack: FU timestamps of Falcon §10.1 (only the low 24 bits are used)
	Now             uint32 // FU
}

// Result is what the engine applies besides the State.
type Result struct {
	IPG    uint32 // inter-packet gap, TU; 0 when fcwnd is at least one packet
	Repath bool   // PLB asks for another path (Falcon §10.4)
}

// Algorithm computes windows, RTO and pacing. Implementations are immutable and shared by all
// connections.
type Algorithm interface {
	Init(s *State)
	Update(s *State, ev *Event) Result
}

// since returns a−b modulo 2^24.
func since(a, b uint32) uint32 { return (a - b) & TimeMask }

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

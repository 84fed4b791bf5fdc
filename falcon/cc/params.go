package cc

import "math"

// Params configures Swift and PLB (Falcon §10.5). Times are FU, fcwnd values packets.
type Params struct {
	InitialFcwnd float64
	InitialNcwnd uint32
	InitialRTO   uint32 // FU
	InitialRTT   uint32 // FU, also the initial delay

	BaseDelayTarget uint32 // FU
	DelaySelect     DelaySelect

	MinFcwnd, MaxFcwnd float64
	FabricAI           float64 // packets per RTT
	FabricMDF          float64 // multiplicative decrease factor
	MaxFabricMD        float64 // largest decrease at once

	MinNcwnd, MaxNcwnd uint32
	NICAI              uint32
	NICMDF             float64
	MaxNICMD           float64
	TargetRxLevel      uint8 // 0..31

	RTTAlpha    float64 // weight of the old smoothed RTT
	SmoothedRTT bool    // pace and guard the windows with the smoothed RTT, not with the last one
	DelayAlpha  float64 // weight of the old smoothed delay

	PerHop               uint32 // FU per forward hop
	MinFlowScalingWindow float64
	MaxFlowScalingWindow float64
	MaxFlowScaling       uint32 // FU

	MinRTO            uint32 // FU
	RTOScalar         float64
	RetransmitLimit   uint8
	MaxDecreaseOnDrop bool // an EACK that shows a drop costs the largest decrease

	PLB               bool
	PLBTargetMultiple float64 // of the delay target: above it an ACK counts as congested
	PLBThreshold      float64 // fraction of congested packets that makes a round congested
	PLBAttempts       uint8   // consecutive congested rounds before repathing
}

// HardwareParams are the defaults of the hardware profile: microsecond fabrics, used with virtual
// time.
func HardwareParams() Params {
	return Params{
		InitialFcwnd: 32, InitialNcwnd: 64, InitialRTO: 7629, InitialRTT: 191,
		BaseDelayTarget: 191, DelaySelect: DelayFabric,
		MinFcwnd: 0.01, MaxFcwnd: 256, FabricAI: 1, FabricMDF: 0.8, MaxFabricMD: 0.5,
		MinNcwnd: 1, MaxNcwnd: 256, NICAI: 1, NICMDF: 0.8, MaxNICMD: 0.5, TargetRxLevel: 15,
		RTTAlpha: 0.75, DelayAlpha: 0,
		PerHop: 8, MinFlowScalingWindow: 0.1, MaxFlowScalingWindow: 256, MaxFlowScaling: 763,
		MinRTO: 7629, RTOScalar: 2, RetransmitLimit: 3,
		PLBTargetMultiple: 1.01, PLBThreshold: 0.5, PLBAttempts: 5,
	}
}

// SoftwareParams are the defaults of the software profile. A TAP round trip is tens of microseconds
// idle and milliseconds under load, so the delay target is 1 ms, the window never falls below one
// packet and the RTO is at least 10 ms.
func SoftwareParams() Params {
	p := HardwareParams()
	p.BaseDelayTarget = 7629 // 1 ms
	p.MinFcwnd = 1
	p.MinRTO = 76294 // 10 ms
	p.InitialRTO = 76294
	p.InitialRTT = 763 // 100 µs
	return p
}

// flowScaling returns α and β of the flow-scaling term; the formula of Falcon §10.3.4 lacks the
// reciprocals.
func (p *Params) flowScaling() (alpha, beta float64) {
	lo, hi := 1/math.Sqrt(p.MinFlowScalingWindow), 1/math.Sqrt(p.MaxFlowScalingWindow)
	if !(lo > hi) { // equal windows (or nonsense): no scaling
		return 0, 0
	}
	alpha = float64(p.MaxFlowScaling) / (lo - hi)
	return alpha, -alpha * hi
}

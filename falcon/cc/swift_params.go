package cc

import (
	"math"
	"time"
)

// SwiftParams configures Swift and PLB (Falcon §10.5). Times are in FU, fcwnd values in packets.
type SwiftParams struct {
	InitialFcwnd float64
	InitialNcwnd uint32
	InitialRTO   uint32 // FU
	InitialRTT   uint32 // FU, also the initial delay

	BaseDelayTarget uint32 // FU
	DelaySelect     DelaySelect

	MinFcwnd, MaxFcwnd float64
	FabricAI           float64 // packets per RTT
	FabricMDF          float64 // multiplicative decrease factor
	MaxFabricMD        float64 // largest single decrease

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
	MaxDecreaseOnDrop bool // an EACK that shows a drop causes the largest decrease

	PLB               bool
	PLBTargetMultiple float64 // multiple of the delay target above which an ACK counts as congested
	PLBThreshold      float64 // fraction of congested packets that makes a round congested
	PLBAttempts       uint8   // consecutive congested rounds before repathing
}

var _ = register(Definition{
	Name: "swift", About: "delay-based windows with flow scaling, and PLB (Falcon §10.3, §10.4)",
	Parameters: func(t Timing) Parameters {
		p := HardwareParams()
		if t == Software {
			p = SoftwareParams()
		}
		return &p
	},
})

// New implements Parameters.
func (p *SwiftParams) New() Algorithm { return NewSwift(*p) }

// Keys implements Parameters.
func (p *SwiftParams) Keys() []Key {
	const fcwnd = float64(MaxFcwnd) / One
	return []Key{
		number("initial_fcwnd", &p.InitialFcwnd, 0.001, fcwnd),
		number("initial_ncwnd", &p.InitialNcwnd, 1, MaxNcwnd),
		duration("initial_rto", &p.InitialRTO, time.Microsecond, MaxTime),
		duration("initial_rtt", &p.InitialRTT, time.Microsecond, MaxTime),
		duration("base_delay_target", &p.BaseDelayTarget, time.Microsecond, MaxTime),
		choice("delay_select", &p.DelaySelect, "full", "fabric", "forward", "reverse"),
		number("min_fcwnd", &p.MinFcwnd, 0.001, fcwnd).notAbove("max_fcwnd"),
		number("max_fcwnd", &p.MaxFcwnd, 0.001, fcwnd),
		number("fabric_ai", &p.FabricAI, 0, fcwnd),
		number("fabric_mdf", &p.FabricMDF, 0, 1),
		number("max_fabric_md", &p.MaxFabricMD, 0, 1),
		number("min_ncwnd", &p.MinNcwnd, 1, MaxNcwnd).notAbove("max_ncwnd"),
		number("max_ncwnd", &p.MaxNcwnd, 1, MaxNcwnd),
		number("nic_ai", &p.NICAI, 0, MaxNcwnd),
		number("nic_mdf", &p.NICMDF, 0, 1),
		number("max_nic_md", &p.MaxNICMD, 0, 1),
		number("target_rx_level", &p.TargetRxLevel, 0, 31),
		number("rtt_alpha", &p.RTTAlpha, 0, 1),
		flag("smoothed_rtt", &p.SmoothedRTT),
		number("delay_alpha", &p.DelayAlpha, 0, 1),
		duration("per_hop", &p.PerHop, 0, MaxTime),
		number("min_flow_scaling_window", &p.MinFlowScalingWindow, 0.001, fcwnd),
		number("max_flow_scaling_window", &p.MaxFlowScalingWindow, 0.001, fcwnd),
		duration("max_flow_scaling", &p.MaxFlowScaling, 0, MaxTime),
		duration("min_rto", &p.MinRTO, time.Microsecond, MaxTime),
		number("rto_scalar", &p.RTOScalar, 1, 100),
		number("retransmit_limit", &p.RetransmitLimit, 0, 255),
		flag("max_decrease_on_drop", &p.MaxDecreaseOnDrop),
		flag("plb", &p.PLB),
		number("plb_target_multiple", &p.PLBTargetMultiple, 0, 100),
		number("plb_threshold", &p.PLBThreshold, 0, 1),
		number("plb_attempts", &p.PLBAttempts, 0, 255),
	}
}

// HardwareParams returns the defaults of the hardware profile: microsecond fabrics, used with
// virtual time.
func HardwareParams() SwiftParams {
	return SwiftParams{
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

// SoftwareParams returns the defaults of the software profile. A TAP round trip takes tens of
// microseconds when idle and milliseconds under load, so the delay target is 1 ms, the window never
// falls below one packet and the RTO is at least 10 ms.
func SoftwareParams() SwiftParams {
	p := HardwareParams()
	p.BaseDelayTarget = 7629 // 1 ms
	p.MinFcwnd = 1
	p.MinRTO = 76294 // 10 ms
	p.InitialRTO = 76294
	p.InitialRTT = 763 // 100 µs
	return p
}

// flowScaling returns α and β of the flow-scaling term. The formula of Falcon §10.3.4 lacks the
// reciprocals.
func (p *SwiftParams) flowScaling() (alpha, beta float64) {
	lo, hi := 1/math.Sqrt(p.MinFlowScalingWindow), 1/math.Sqrt(p.MaxFlowScalingWindow)
	if !(lo > hi) { // equal windows, or invalid ones: no scaling
		return 0, 0
	}
	alpha = float64(p.MaxFlowScaling) / (lo - hi)
	return alpha, -alpha * hi
}

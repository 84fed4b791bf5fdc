package cc

import (
	"math"
	"time"

	"github.com/falcon-vnic/vnic/internal/param"
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
func (p *SwiftParams) Keys() []param.Key {
	const fcwnd = float64(MaxFcwnd) / One
	return []param.Key{
		param.Number("initial_fcwnd", "fabric window at the start, packets", &p.InitialFcwnd, 0.001, fcwnd),
		param.Number("initial_ncwnd", "NIC window at the start, packets", &p.InitialNcwnd, 1, MaxNcwnd),
		falconTime("initial_rto", "retransmission timeout at the start", &p.InitialRTO, time.Microsecond, MaxTime),
		falconTime("initial_rtt", "round trip assumed at the start", &p.InitialRTT, time.Microsecond, MaxTime),
		falconTime("base_delay_target", "fabric delay aimed at, without hops and flow scaling", &p.BaseDelayTarget, time.Microsecond, MaxTime),
		param.Choice("delay_select", "the delay that is compared with the target", &p.DelaySelect, "full", "fabric", "forward", "reverse"),
		param.Number("min_fcwnd", "smallest fabric window, packets", &p.MinFcwnd, 0.001, fcwnd).NoMoreThan("max_fcwnd"),
		param.Number("max_fcwnd", "largest fabric window, packets", &p.MaxFcwnd, 0.001, fcwnd),
		param.Number("fabric_ai", "additive increase of the fabric window, packets per round trip", &p.FabricAI, 0, fcwnd),
		param.Number("fabric_mdf", "multiplicative decrease factor of the fabric window", &p.FabricMDF, 0, 1),
		param.Number("max_fabric_md", "largest decrease of the fabric window at once", &p.MaxFabricMD, 0, 1),
		param.Number("min_ncwnd", "smallest NIC window, packets", &p.MinNcwnd, 1, MaxNcwnd).NoMoreThan("max_ncwnd"),
		param.Number("max_ncwnd", "largest NIC window, packets", &p.MaxNcwnd, 1, MaxNcwnd),
		param.Number("nic_ai", "additive increase of the NIC window, packets per round trip", &p.NICAI, 0, MaxNcwnd),
		param.Number("nic_mdf", "multiplicative decrease factor of the NIC window", &p.NICMDF, 0, 1),
		param.Number("max_nic_md", "largest decrease of the NIC window at once", &p.MaxNICMD, 0, 1),
		param.Number("target_rx_level", "receive buffer occupancy aimed at", &p.TargetRxLevel, 0, 31),
		param.Number("rtt_alpha", "weight of the old smoothed round trip", &p.RTTAlpha, 0, 1),
		param.Flag("smoothed_rtt", "pace and guard the windows with the smoothed round trip, not with the last one", &p.SmoothedRTT),
		param.Number("delay_alpha", "weight of the old smoothed delay", &p.DelayAlpha, 0, 1),
		falconTime("per_hop", "added to the delay target for each hop", &p.PerHop, 0, MaxTime),
		param.Number("min_flow_scaling_window", "window at and below which flow scaling is largest, packets", &p.MinFlowScalingWindow, 0.001, fcwnd),
		param.Number("max_flow_scaling_window", "window at and above which there is no flow scaling, packets", &p.MaxFlowScalingWindow, 0.001, fcwnd),
		falconTime("max_flow_scaling", "largest flow scaling, added to the delay target", &p.MaxFlowScaling, 0, MaxTime),
		falconTime("min_rto", "smallest retransmission timeout", &p.MinRTO, time.Microsecond, MaxTime),
		param.Number("rto_scalar", "retransmission timeout as a multiple of the smoothed round trip", &p.RTOScalar, 1, 100),
		param.Number("retransmit_limit", "successive timeouts after which the fabric window falls to its minimum", &p.RetransmitLimit, 0, 255),
		param.Flag("max_decrease_on_drop", "an ACK that shows a loss causes the largest decrease", &p.MaxDecreaseOnDrop),
		param.Flag("plb", "move to another path after congested rounds (PLB)", &p.PLB),
		param.Number("plb_target_multiple", "multiple of the delay target above which an ACK counts as congested", &p.PLBTargetMultiple, 0, 100),
		param.Number("plb_threshold", "share of congested ACKs that makes a round congested", &p.PLBThreshold, 0, 1),
		param.Number("plb_attempts", "congested rounds in a row before the path changes", &p.PLBAttempts, 0, 255),
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

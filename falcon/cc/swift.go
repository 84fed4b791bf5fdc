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

// Swift is the algorithm of Falcon §10.3. Make it with NewSwift.
type Swift struct {
	p           SwiftParams
	alpha, beta float64 // flow scaling
	minFcwnd    uint32  // MinFcwnd · 1024
}

var _ Algorithm = (*Swift)(nil)

// NewSwift returns Swift with the given parameters.
func NewSwift(p SwiftParams) *Swift {
	w := &Swift{p: p, minFcwnd: toFixed(p.MinFcwnd)}
	w.alpha, w.beta = p.flowScaling()
	return w
}

// Init implements Algorithm.
func (w *Swift) Init(s *State) {
	*s = State{
		Fcwnd: toFixed(w.p.InitialFcwnd), Ncwnd: w.p.InitialNcwnd, RTO: w.p.InitialRTO,
		RTT: w.p.InitialRTT, Delay: w.p.InitialRTT, Direction: Increase,
		BaseDelay: w.p.BaseDelayTarget, Select: w.p.DelaySelect,
	}
}

// Update implements Algorithm.
func (w *Swift) Update(s *State, ev *Event) Result {
	var res Result
	fcwnd, ncwnd := fromFixed(s.Fcwnd), s.Ncwnd
	now := ev.Now & TimeMask
	rtt := s.RTT
	if ev.Kind == Retransmit {
		next := w.onRetransmit(s, ev, fcwnd, now)
		w.setFcwnd(s, next, now, rtt)
		fcwnd = next
	} else {
		rtt = ev.RTT()
		s.RTT = smooth(w.p.RTTAlpha, s.RTT, rtt)
		if w.p.SmoothedRTT {
			rtt = s.RTT
		}
		s.Delay = smooth(w.p.DelayAlpha, s.Delay, ev.Delay(s.Select))
		target := w.pathTarget(s.BaseDelay, ev.Hops)
		if w.p.PLB || s.Delay >= target { // below pathTarget the flow-scaling term, a root and a division, makes no difference
			target = w.target(s.BaseDelay, fcwnd, ev.Hops)
		}
		next := w.fabricWindow(s, ev, fcwnd, target, now, rtt)
		if ev.Kind == NackResource {
			w.setNcwnd(s, w.exhaustedWindow(s, now, rtt), now, rtt)
		} else {
			w.setNcwnd(s, w.nicWindow(s, ev, now, rtt), now, rtt)
		}
		w.setFcwnd(s, next, now, rtt)
		if w.p.PLB && ev.Kind == Ack {
			res.Repath = w.plb(s, ev, target, min(fcwnd, float64(ncwnd)))
		}
		fcwnd = next
	}
	res.IPG = interPacketGap(fcwnd, rtt)
	s.RTO = w.timeout(s.RTT, res.IPG)
	return res
}

// pathTarget returns the target without flow scaling, which can only raise it.
func (w *Swift) pathTarget(base uint32, hops uint8) uint32 {
	return uint32(min(uint64(base)+uint64(w.p.PerHop)*uint64(hops), TimeMask))
}

// target implements FabricDelayTarget of §10.3.4, FU.
func (w *Swift) target(base uint32, fcwnd float64, hops uint8) uint32 {
	scaling := math.Trunc(w.alpha/math.Sqrt(fcwnd) + w.beta)
	scaling = min(max(scaling, 0), float64(w.p.MaxFlowScaling))
	t := uint64(base) + uint64(scaling) + uint64(w.p.PerHop)*uint64(hops)
	return uint32(min(t, TimeMask))
}

// fabricWindow implements ComputeAckFabricCongestionWindow of §10.3.1. At delay == target the
// window neither rises nor falls.
func (w *Swift) fabricWindow(s *State, ev *Event, fcwnd float64, target, now, rtt uint32) float64 {
	elapsed := since(now, s.FabricMarker) >= rtt
	switch {
	case w.p.MaxDecreaseOnDrop && (ev.EackDrop || ev.EackOwn):
		if elapsed {
			fcwnd *= 1 - w.p.MaxFabricMD
		}
	case s.Delay < target:
		fcwnd += w.p.FabricAI * float64(ev.Acked) / max(fcwnd, 1)
	case elapsed && s.Delay > 0:
		over := float64(s.Delay-target) / float64(s.Delay)
		fcwnd *= 1 - min(w.p.MaxFabricMD, w.p.FabricMDF*over)
	}
	return w.clampFcwnd(fcwnd)
}

// nicWindow implements ComputeAckNICCongestionWindow of §10.3.1.
func (w *Swift) nicWindow(s *State, ev *Event, now, rtt uint32) float64 {
	ncwnd := float64(s.Ncwnd)
	elapsed := since(now, s.NICMarker) >= rtt
	level, target := ev.RxOccupancy, w.p.TargetRxLevel
	if level < target {
		if elapsed || s.Direction == Decrease {
			ncwnd += float64(w.p.NICAI)
		}
	} else if elapsed && level > 0 {
		over := float64(level-target) / float64(level)
		ncwnd *= 1 - min(w.p.MaxNICMD, w.p.NICMDF*over)
	}
	return ncwnd
}

// exhaustedWindow implements §10.3.3.
func (w *Swift) exhaustedWindow(s *State, now, rtt uint32) float64 {
	ncwnd := float64(s.Ncwnd)
	if s.Direction == Increase || since(now, s.NICMarker) >= rtt {
		ncwnd *= 1 - w.p.MaxNICMD
	}
	return ncwnd
}

// onRetransmit implements §10.3.2: at most one cut per RTT, and the smallest window once the limit
// is reached.
func (w *Swift) onRetransmit(s *State, ev *Event, fcwnd float64, now uint32) float64 {
	if since(now, s.FabricMarker) >= s.RTT {
		switch {
		case ev.RetransmitCount == 1:
			fcwnd *= 1 - w.p.MaxFabricMD
		case ev.RetransmitCount >= w.p.RetransmitLimit:
			fcwnd = w.p.MinFcwnd
		}
	}
	return w.clampFcwnd(fcwnd)
}

// setFcwnd stores the window and moves its marker (§10.3.6).
func (w *Swift) setFcwnd(s *State, fcwnd float64, now, rtt uint32) {
	next := toFixed(fcwnd)
	if next < s.Fcwnd || next <= w.minFcwnd {
		s.FabricMarker = now
	} else {
		s.FabricMarker = trail(s.FabricMarker, now, rtt)
	}
	s.Fcwnd = next
}

// setNcwnd rounds, clamps and stores the window and moves its marker and direction (§10.3.6).
func (w *Swift) setNcwnd(s *State, ncwnd float64, now, rtt uint32) {
	next := min(max(uint32(math.Floor(ncwnd+0.5)), w.p.MinNcwnd), w.p.MaxNcwnd)
	switch {
	case next < s.Ncwnd || next == w.p.MinNcwnd:
		s.NICMarker, s.Direction = now, Decrease
	case next > s.Ncwnd || next == w.p.MaxNcwnd:
		s.NICMarker, s.Direction = now, Increase
	default:
		s.NICMarker = trail(s.NICMarker, now, rtt)
	}
	s.Ncwnd = next
}

// trail keeps a marker at most one RTT behind, so that its 24 bits do not wrap unnoticed.
func trail(marker, now, rtt uint32) uint32 {
	return since(now, min(since(now, marker), rtt))
}

// interPacketGap returns rtt/fcwnd in TU while fcwnd is below one packet, else 0.
func interPacketGap(fcwnd float64, rtt uint32) uint32 {
	if fcwnd >= 1 {
		return 0
	}
	return uint32(min(math.Round(float64(rtt)/fcwnd*fuToTU), MaxIPG))
}

// timeout returns the RTO in FU: a multiple of the smoothed RTT plus the gap, at least MinRTO.
func (w *Swift) timeout(rtt, ipg uint32) uint32 {
	t := math.Trunc(float64(rtt)*w.p.RTOScalar + float64(ipg)/fuToTU)
	return max(uint32(min(t, TimeMask)), w.p.MinRTO)
}

func (w *Swift) clampFcwnd(v float64) float64 { return min(max(v, w.p.MinFcwnd), w.p.MaxFcwnd) }

// toFixed rounds to 10 fraction bits within the format's range 1/1024 … 2047.999.
func toFixed(v float64) uint32 { return uint32(min(max(math.Floor(v*One+0.5), 1), MaxFcwnd)) }

func fromFixed(v uint32) float64 { return float64(max(v, 1)) / One }

// Target returns FabricDelayTarget of Falcon §10.3.4 in FU for a window of fcwnd packets, so that
// an observer can compare the delay that it sees with the target of Swift.
func (w *Swift) Target(fcwnd float64, hops uint8) uint32 {
	return w.target(w.p.BaseDelayTarget, fcwnd, hops)
}

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

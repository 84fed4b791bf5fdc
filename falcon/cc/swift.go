package cc

import "math"

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

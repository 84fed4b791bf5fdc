package cc

import (
	"math"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

var _ = register("dcqcn", DefaultDCQCN())

// DCQCN limits the rate of a connection by the peer's congestion notifications (Zhu et al.,
// "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, §3.3), as RoCEv2 NICs do.
// Losses change the window, as in Window; that is needed for a peer that sends no notifications.
//
// The paper's times are for a network whose round trip is shorter than the time between two
// notifications. A queue in the kernel makes the round trip a hundred times as long. Then many
// notifications result from one congestion before the first reduction can show an effect, and the
// rate has risen far beyond the line rate before the first notification arrives. So all times are
// stretched with the measured round trip, and there is at most one reduction in Calm. A reduction
// that follows another without a step between them keeps the target, as NICs do.
//
//	notification ─▶ target = rate; rate falls by alpha/2; alpha rises
//	           then, by time and by bytes sent:
//	             5 times   rate = (rate + target) / 2        fast recovery
//	             further   target rises by Raise, as above    additive increase
//	             both > 5  target rises by Hyper              hyper increase
//	rate reaches Line ─▶ no bound, until the next notification
type DCQCN struct {
	Window
	Line  float64    // bytes per second; at this rate no limit is needed
	Least float64    // bytes per second
	Raise float64    // bytes per second and step
	Hyper float64    // the same, after a long time without notifications
	Gain  float64    // of alpha, g
	Trip  vtime.Time // round trip that the following times are for; a longer one stretches them
	Calm  vtime.Time // time without a notification after which alpha falls; also the minimum between two reductions
	Pause vtime.Time // time between two steps
	Bytes int        // the same, in bytes sent
	Quick int        // steps of fast recovery, F
}

// DefaultDCQCN returns the usual values of NICs.
func DefaultDCQCN() DCQCN {
	const mbit = 1e6 / 8
	return DCQCN{
		Line: 40_000 * mbit, Least: 1 * mbit, Raise: 5 * mbit, Hyper: 50 * mbit, Gain: 1. / 256,
		Trip: 50e3, Calm: 55e3, Pause: 300e3, Bytes: 10 << 20, Quick: 5,
	}
}

// measureTime is the duration of a rate measurement.
const measureTime vtime.Time = 1e6

// Init implements Algorithm.
func (d DCQCN) Init(s *State) {
	d.Window.Init(s)
	s.alpha = 1
}

// Answered implements Algorithm.
func (d DCQCN) Answered(s *State, now vtime.Time, packets, bytes int) {
	d.Window.Answered(s, now, packets, bytes)
	if s.since == 0 {
		s.since = now
		return
	}
	s.counted += bytes
	if took := now - s.since; took >= measureTime {
		s.measured = float64(s.counted) * 1e9 / float64(took)
		s.counted, s.since = 0, now
	}
}

// Notified implements Algorithm.
func (d DCQCN) Notified(s *State, now vtime.Time) {
	d.Sent(s, now, 0) // catch up with steps that were due before
	switch took := now - s.since; {
	case s.Rate != 0:
	case s.measured > 0:
		s.Rate = s.measured
	case s.counted > 0 && took > 0:
		s.Rate = float64(s.counted) * 1e9 / float64(took)
	default: // there is no rate to reduce yet
		d.Window.Notified(s, now)
		return
	}
	if s.cutAt != 0 && now < s.cutAt+d.stretch(s, d.Calm) {
		return
	}
	s.cutAt = now
	if s.byTime+s.byBytes > 0 || s.target == 0 {
		s.target = s.Rate
	}
	s.Rate = max(s.Rate*(1-s.alpha/2), d.Least)
	s.alpha = (1-d.Gain)*s.alpha + d.Gain
	s.byTime, s.byBytes, s.sent = 0, 0, 0
	s.alphaAt, s.raiseAt = now+d.stretch(s, d.Calm), now+d.stretch(s, d.Pause)
}

// Sent implements Algorithm. The rate rises with time and bytes.
func (d DCQCN) Sent(s *State, now vtime.Time, n int) {
	if s.Rate == 0 {
		return
	}
	if now >= s.alphaAt {
		calm := d.stretch(s, d.Calm)
		times := (now-s.alphaAt)/calm + 1
		s.alpha *= math.Pow(1-d.Gain, float64(times))
		s.alphaAt += times * calm
	}
	for now >= s.raiseAt && s.Rate != 0 {
		s.raiseAt += d.stretch(s, d.Pause)
		s.byTime++
		d.raise(s)
	}
	if s.sent += n; s.sent >= d.Bytes && s.Rate != 0 {
		s.sent = 0
		s.byBytes++
		d.raise(s)
	}
}

// stretch scales a time with the current round trip.
func (d DCQCN) stretch(s *State, t vtime.Time) vtime.Time {
	return t * max(s.Trip, d.Trip) / d.Trip
}

// raise does one step.
func (d DCQCN) raise(s *State) {
	switch most, least := max(s.byTime, s.byBytes), min(s.byTime, s.byBytes); {
	case most <= d.Quick:
	case least > d.Quick:
		s.target += d.Hyper
	default:
		s.target += d.Raise
	}
	s.Rate = (s.Rate + s.target) / 2
	if s.Rate >= d.Line {
		s.Rate = 0
	}
}

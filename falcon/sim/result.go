package sim

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cc"
)

// Result is the outcome of a scenario. Totals and means exclude the warm-up.
type Result struct {
	Scenario string      `json:"scenario"`
	Seed     uint64      `json:"seed"`
	Duration falcon.Time `json:"duration_ns"`
	WarmUp   falcon.Time `json:"warm_up_ns"`

	Goodput          float64  `json:"goodput_bps"` // payload delivered
	GoodputOverRate  float64  `json:"goodput_over_rate"`
	GoodputOverIdeal *float64 `json:"goodput_over_ideal,omitempty"` // relative to the goodput without impairments
	Jain             float64  `json:"jain"`                         // fairness of the flows' goodputs, 1 = equal

	Packets         uint64  `json:"packets"`         // first transmissions of packets with a PSN
	Retransmissions uint64  `json:"retransmissions"` // of them
	Early           uint64  `json:"early_retransmits"`
	Timeouts        uint64  `json:"timeouts"`
	Spurious        uint64  `json:"spurious"` // packets the receiver had already
	SpuriousShare   float64 `json:"spurious_share"`
	Lost            uint64  `json:"lost"` // packets with a PSN the network dropped
	LossShare       float64 `json:"loss_share"`
	QueueDrops      uint64  `json:"queue_drops"` // by full switch ports, of any packet
	Marked          uint64  `json:"ecn_marked"`
	Failed          uint64  `json:"failed_operations"`

	Offered    float64     `json:"offered_bps,omitempty"` // payload of the flows that have a rate
	Operations uint64      `json:"operations"`            // operations that arrived after the warm-up and completed
	Time50     falcon.Time `json:"completion_p50_ns"`     // from an operation's arrival to its end
	Time99     falcon.Time `json:"completion_p99_ns"`
	Time999    falcon.Time `json:"completion_p999_ns"`

	Delay           float64 `json:"delay_ns"`          // mean of Swift's delay signal
	Target          float64 `json:"target_ns"`         // mean of the target that Swift steers it to, 0 = another algorithm
	DelayOverTarget float64 `json:"delay_over_target"` // of these means
	QueuePeak       int     `json:"queue_peak_bytes"`

	Flows  []float64 `json:"flow_goodput_bps"`
	Series []Sample  `json:"series"`
}

// Sample describes the time since the previous sample, over all flows.
type Sample struct {
	At      falcon.Time `json:"at_ns"` // since the start
	Goodput float64     `json:"goodput_bps"`
	CwndMin float64     `json:"cwnd_min"` // packets, at that time
	Cwnd    float64     `json:"cwnd"`     // mean
	CwndMax float64     `json:"cwnd_max"`
	Delay   float64     `json:"delay_ns"`
	Target  float64     `json:"target_ns"`
	Queue   int         `json:"queue_peak_bytes"` // of the fullest port
}

// Jain returns Jain's fairness index: 1 if all values are equal, 1/n if all but one are zero.
func Jain(v []float64) float64 {
	var sum, squares float64
	for _, x := range v {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(v)) * squares)
}

// meter observes a network.
type meter struct {
	net    *Network
	begin  falcon.Time
	s      *Scenario
	target func(fcwnd float64, hops uint8) uint32 // nil: the algorithm has none
	series []Sample

	last           uint64   // bytes received at the last sample
	warm           []uint64 // bytes received when the warm-up ended, by flow
	base           totals
	peak           int
	delays, wanted float64 // sums of samples after the warm-up
	samples        int
}

// totals holds counters to subtract.
type totals struct {
	tally
	early, timeouts, drops, marks, failed uint64
}

func newMeter(n *Network, s *Scenario) *meter {
	m := &meter{net: n, s: s, begin: n.Now, warm: make([]uint64, len(n.flows))}
	m.series = make([]Sample, 0, s.Duration/s.Sample)
	if t, ok := s.Profile.CC.(interface {
		Target(fcwnd float64, hops uint8) uint32
	}); ok {
		m.target = t.Target
	}
	n.warm, n.hook = m.start, m.sample
	n.completions.since = never
	n.events.at(m.begin+s.WarmUp, warmedUp, 0, nil)
	n.events.at(m.begin+s.Sample, sampling, 0, nil)
	return m
}

func (m *meter) start() {
	m.base = m.totals()
	m.net.completions.since = m.net.Now
	for i, f := range m.net.flows {
		m.warm[i] = f.received
	}
}

func (m *meter) totals() (t totals) {
	for _, f := range m.net.flows {
		t.add(f.from.history.tally)
		t.add(f.to.history.tally)
		t.failed += f.failed
	}
	for i, h := range m.net.Hosts {
		s := h.Engine.Stats()
		t.early += s.EarlyRetransmits
		t.timeouts += s.TimeoutRetransmits
		t.drops += m.net.Ports[i].Dropped
		t.marks += m.net.Ports[i].Marked
	}
	return t
}

func (m *meter) sample() {
	n := m.net
	n.events.at(n.Now+m.s.Sample, sampling, 0, nil)
	s := Sample{At: n.Now - m.begin}
	var bytes uint64
	var delay, target int64
	for i, f := range n.flows {
		bytes += f.received
		sender := f.from
		if f.cfg.Pull {
			sender = f.to
		}
		info := sender.conn.Info()
		if i == 0 {
			s.CwndMin = info.Fcwnd
		}
		s.Cwnd += info.Fcwnd
		s.CwndMin, s.CwndMax = min(s.CwndMin, info.Fcwnd), max(s.CwndMax, info.Fcwnd)
		delay += info.Delay
		if m.target != nil {
			target += int64(uint64(m.target(info.Fcwnd, hops)) * cc.FUPicos / picos)
		}
	}
	flows := float64(len(n.flows))
	s.Goodput = float64(bytes-m.last) * 8e9 / float64(m.s.Sample)
	m.last = bytes
	s.Cwnd /= flows
	s.Delay, s.Target = float64(delay)/flows, float64(target)/flows
	for i := range n.Ports {
		s.Queue = max(s.Queue, n.Ports[i].Peak)
		n.Ports[i].Peak = 0
	}
	m.series = append(m.series, s)
	if s.At > m.s.WarmUp {
		m.peak = max(m.peak, s.Queue)
		m.delays += s.Delay
		m.wanted += s.Target
		m.samples++
	}
}

func (m *meter) result(s *Scenario, seed uint64) *Result {
	t := m.totals()
	d := t.since(m.base.tally)
	r := &Result{
		Scenario: s.Name, Seed: seed, Duration: s.Duration, WarmUp: s.WarmUp,
		Packets: d.first, Retransmissions: d.again, Spurious: d.spurious, Lost: d.lost,
		Early: t.early - m.base.early, Timeouts: t.timeouts - m.base.timeouts,
		QueueDrops: t.drops - m.base.drops, Marked: t.marks - m.base.marks, Failed: t.failed - m.base.failed,
		QueuePeak: m.peak, Series: m.series,
		Operations: m.net.completions.n, Time50: m.net.completions.quantile(0.5),
		Time99: m.net.completions.quantile(0.99), Time999: m.net.completions.quantile(0.999),
	}
	seconds := float64(s.Duration-s.WarmUp) / 1e9
	for i, f := range m.net.flows {
		g := float64(f.received-m.warm[i]) * 8 / seconds
		r.Goodput += g
		r.Flows = append(r.Flows, g)
		r.Offered += float64(f.cfg.Rate) * float64(max(s.Duration-max(s.WarmUp, f.cfg.Start), 0)) / float64(s.Duration-s.WarmUp)
	}
	r.GoodputOverRate = r.Goodput / float64(s.Network.Rate)
	r.Jain = Jain(r.Flows)
	if sent := float64(d.first + d.again); sent > 0 {
		r.SpuriousShare, r.LossShare = float64(d.spurious)/sent, float64(d.lost)/sent
	}
	if m.samples > 0 {
		r.Delay, r.Target = m.delays/float64(m.samples), m.wanted/float64(m.samples)
	}
	if r.Target > 0 {
		r.DelayOverTarget = r.Delay / r.Target
	}
	return r
}

package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Metric is one entry of bench.json. The last three fields are there if a peer
// was measured in the same run.
type Metric struct {
	Name           string   `json:"name"`
	Value          float64  `json:"value"`
	Unit           string   `json:"unit"`
	HigherIsBetter bool     `json:"higher_is_better"`
	Peer           string   `json:"peer,omitempty"`
	PeerValue      *float64 `json:"peer_value,omitempty"`
	Ratio          *float64 `json:"ratio,omitempty"` // value / peer_value
}

// suffixes of metric names, with what they say.
var suffixes = []struct {
	suffix, unit string
	higher       bool
}{
	{"_per_s", "1/s", true},
	{"_gbps", "Gbit/s", true},
	{"_mbs", "MB/s", true},
	{"_pps", "packets/s", true},
	{"_iops", "1/s", true},
	{"_ok", "tests", true},
	{"_us", "µs", false},
	{"_ns", "ns", false},
	{"_ms", "ms", false},
	{"_s", "s", false}, // behind _per_s
	{"_bytes", "bytes", false},
}

// shares are metrics without a unit, by the part of the name that says so.
var shares = []struct {
	part   string
	higher bool
}{
	{"/goodput_", true},
	{"pct", true}, // sim/…_loss10pct: goodput over that without loss
	{"/outage", true},
	{"_failed", false},
	{"_jain", true},
	{"_share", true},
	{"_loss", false},
	{"/spurious_", false},
	{"/watch_cpu", false}, // of a processor
}

// rates are quotients of rates, which are better when they are higher.
var rates = []string{
	"rdma/write64k_over_cipher", "rdma/qps10k_over_one", "guest/write64_shadow_over_vsock",
	"rdma/write64k_shards2_over_1", "rdma/write64_shards2_over_1", "tunnel/tcp_shards2_over_1", "tunnel/tcp_over_limit",
	"rdma/write1m_8k_over_4k", "rdma/write1m_8k_over_4k_singly", "rdma/write64_8k_over_4k", "rdma/write64_8k_over_4k_singly",
	"uplink/tcp_udp_over_tap", "uplink/write64k_udp_over_tap",
	"record/write64_again_over_off", "record/write64_digest_over_off", "record/write64_whole_over_off",
	"record/write64k_again_over_off", "record/write64k_digest_over_off", "record/write64k_whole_over_off",
}

// unitOf reads unit and direction from a metric's name. A quotient, like
// rdma/sealed_over_clear, is better when it is lower, unless it is one of rates.
// What was measured at a certain MTU says so behind the unit.
func unitOf(name string) (unit string, higher, ok bool) {
	if at := strings.LastIndex(name, "_mtu"); at >= 0 {
		name = name[:at]
	}
	for _, s := range suffixes {
		if strings.HasSuffix(name, s.suffix) {
			return s.unit, s.higher, true
		}
	}
	if strings.Contains(name, "_over_") {
		return "ratio", slices.Contains(rates, name), true
	}
	for _, s := range shares {
		if strings.Contains(name, s.part) {
			return "ratio", s.higher, true
		}
	}
	return "", false, false
}

// metrics returns what was reported for the rooms, sorted by name, and a warning
// for each metric that cannot be used.
func (r *report) metrics(rooms []room) (list []Metric, warnings []string) {
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	var names []string
	for name := range r.samples {
		roomName, _, _ := strings.Cut(name, "/")
		if slices.ContainsFunc(rooms, func(r room) bool { return r.owns(roomName) }) {
			names = append(names, name)
		} else if !slices.ContainsFunc(allRooms, func(r room) bool { return r.owns(roomName) }) {
			warn("metric %s: there is no room %q", name, roomName)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		own, peer, isPeer := strings.Cut(name, "@")
		unit, higher, ok := unitOf(own)
		v := median(r.samples[name])
		switch {
		case !ok:
			warn("metric %s: its name must end in one of %s, or contain _over_, /goodput_, _jain, _share, _loss or /spurious_", name, suffixList())
			continue
		case math.IsNaN(v) || math.IsInf(v, 0):
			warn("metric %s: its value is %v", name, v)
			continue
		case isPeer && len(r.samples[own]) == 0:
			warn("metric %s: %s itself was not reported", name, own)
			continue
		}
		if !isPeer {
			list = append(list, Metric{Name: own, Value: v, Unit: unit, HigherIsBetter: higher})
			continue
		}
		m := Metric{Name: own, Value: median(r.samples[own]), Unit: unit, HigherIsBetter: higher, Peer: peer, PeerValue: &v}
		if v != 0 {
			ratio := m.Value / v
			m.Ratio = &ratio
		}
		// The first peer completes the entry, further ones get their own.
		if i := slices.IndexFunc(list, func(o Metric) bool { return o.Name == own && o.Peer == "" }); i >= 0 {
			list[i] = m
		} else {
			list = append(list, m)
		}
	}
	slices.SortStableFunc(list, func(a, b Metric) int { return strings.Compare(a.Name, b.Name) })
	return list, warnings
}

func suffixList() string {
	var s []string
	for _, x := range suffixes {
		s = append(s, x.suffix)
	}
	return strings.Join(s, ", ")
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	n := len(s)
	if n == 0 {
		return math.NaN()
	}
	if n%2 == 1 {
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}

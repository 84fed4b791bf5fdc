package config

import (
	"fmt"
	"time"
)

// Impair injects faults into the packets of an uplink in each direction, to test a bad network. The
// default is none. The control API changes the values of a running NIC.
type Impair struct {
	RX Impairment `yaml:"rx" doc:"packets that arrive"`
	TX Impairment `yaml:"tx" doc:"packets that leave"`
}

// Impairment is the faults of one direction. Every decision is a function of the seed and of the
// packet's index.
type Impairment struct {
	Loss         Share         `yaml:"loss" use:"0% to 100%" doc:"share of packets that are lost, as 1% or 0.01"`
	Duplicate    Share         `yaml:"duplicate" use:"0% to 100%" doc:"share of packets that come twice"`
	Reorder      Share         `yaml:"reorder" use:"0% to 100%" doc:"share of packets that are held back for reorder_delay, so that later ones overtake"`
	Corrupt      Share         `yaml:"corrupt" use:"0% to 100%" doc:"share of packets in which one bit is flipped"`
	Mark         Share         `yaml:"mark" use:"0% to 100%" doc:"share of packets that are marked (ECN, congestion experienced), if they can be"`
	Delay        time.Duration `yaml:"delay" use:"0s to 10s" doc:"delay of every packet"`
	Jitter       time.Duration `yaml:"jitter" use:"0s to 10s" doc:"further random delay up to this, evenly distributed"`
	ReorderDelay time.Duration `yaml:"reorder_delay" use:"0s to 10s" doc:"delay of packets that are reordered"`
	Rate         Rate          `yaml:"rate" use:"0, or 1K and more" doc:"bits per second; 0: unlimited"`
	Queue        int           `yaml:"queue" use:"1 to 65536" doc:"most packets in flight; more are lost"`
	Down         bool          `yaml:"down" use:"true or false" doc:"everything is lost"`
	Seed         uint64        `yaml:"seed" doc:"the same seed decides the same for the n-th packet"`
}

// Bounds and defaults of an impairment.
const (
	maxImpairDelay      = 10 * time.Second
	maxImpairQueue      = 65536
	minImpairRate       = 1000
	defaultImpairQueue  = 8192
	defaultReorderDelay = 200 * time.Microsecond
)

// On reports whether the impairment does anything.
func (i Impairment) On() bool {
	i.ReorderDelay, i.Queue, i.Seed = 0, 0, 0
	return i != Impairment{}
}

// NoImpairment returns the impairment that is used when nothing is configured.
func NoImpairment() (i Impairment) {
	i.SetDefaults()
	return i
}

// SetDefaults sets what was left out.
func (i *Impairment) SetDefaults() {
	set(&i.ReorderDelay, defaultReorderDelay)
	set(&i.Queue, defaultImpairQueue)
	set(&i.Seed, 1)
}

func (i *Impairment) check(r *report, path string) {
	for _, p := range []struct {
		key   string
		value Share
	}{{"loss", i.Loss}, {"duplicate", i.Duplicate}, {"reorder", i.Reorder}, {"corrupt", i.Corrupt}, {"mark", i.Mark}} {
		if !(p.value >= 0 && p.value <= 1) {
			r.add(join(path, p.key), fmt.Sprintf("%v is not a share of packets", float64(p.value)), "use 0 to 1")
		}
	}
	for _, p := range []struct {
		key   string
		value time.Duration
	}{{"delay", i.Delay}, {"jitter", i.Jitter}, {"reorder_delay", i.ReorderDelay}} {
		if p.value < 0 || p.value > maxImpairDelay {
			r.add(join(path, p.key), fmt.Sprintf("%s is out of range", p.value), fmt.Sprintf("use 0s to %s", maxImpairDelay))
		}
	}
	if i.Rate != 0 && i.Rate < minImpairRate {
		r.add(join(path, "rate"), fmt.Sprintf("%d bits per second is too little to carry anything", i.Rate), "use 1K or more, or 0 for no limit")
	}
	if i.Queue < 1 || i.Queue > maxImpairQueue {
		r.add(join(path, "queue"), fmt.Sprintf("%d packets is out of range", i.Queue), fmt.Sprintf("use 1 to %d", maxImpairQueue))
	}
}

// Check reports every value that is out of range.
func (i *Impairment) Check() error {
	r := &report{}
	i.check(r, "")
	return r.sorted()
}

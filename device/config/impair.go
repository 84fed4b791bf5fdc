package config

import (
	"fmt"
	"time"
)

// Impair injects faults into the packets of an uplink in each direction, to test a bad network. The
// default is none. The control API changes the values of a running NIC.
type Impair struct {
	RX Impairment `yaml:"rx"` // received packets
	TX Impairment `yaml:"tx"` // sent packets
}

// Impairment is the faults of one direction. Every decision is a function of the seed and of the
// packet's index.
type Impairment struct {
	Loss         Share         `yaml:"loss"`
	Duplicate    Share         `yaml:"duplicate"`
	Reorder      Share         `yaml:"reorder"`                // delayed by reorder_delay, so that later packets overtake
	Corrupt      Share         `yaml:"corrupt"`                // one bit flipped
	Mark         Share         `yaml:"mark"`                   // marked congestion experienced, if the packet is ECN-capable
	Delay        time.Duration `yaml:"delay"`                  // of every packet
	Jitter       time.Duration `yaml:"jitter"`                 // additional random delay up to this, evenly distributed
	ReorderDelay time.Duration `yaml:"reorder_delay"`          // default 200us
	Rate         Rate          `yaml:"rate"`                   // bits per second; 0: unlimited
	Queue        int           `yaml:"queue" use:"1 to 65536"` // maximum number of packets in flight, more are lost; default 8192
	Down         bool          `yaml:"down"`                   // everything is lost
	Seed         uint64        `yaml:"seed"`                   // default 1
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
	i.setDefaults()
	return i
}

func (i *Impairment) setDefaults() {
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

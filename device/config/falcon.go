package config

import (
	"fmt"
	"strings"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/internal/param"
)

// Falcon timing profiles.
const (
	ProfileSoftware = "software" // for TAP devices: delays of milliseconds under load
	ProfileHardware = "hardware" // for a NIC on a fabric with microsecond delays, in simulations
)

// Falcon chooses the transport's timing: a profile, and values that override it. The keys are those
// of falcon.Profile and of the congestion control algorithm, which define meaning and bounds.
type Falcon struct {
	Profile string         `yaml:"profile" use:"software or hardware" default:"software" doc:"software for TAPs, or hardware for a fabric of microseconds, in simulations; each other key replaces one value of the profile"`
	Values  map[string]any // by the name of the key
	CC      Congestion     `yaml:"cc" doc:"congestion control"`
}

// timing returns the profile without the overrides.
func (f *Falcon) timing() (falcon.Profile, cc.Timing) {
	if f.Profile == ProfileHardware {
		return falcon.Hardware(), cc.Hardware
	}
	return falcon.Software(), cc.Software
}

// Build returns the transport's profile with the overrides applied.
func (f *Falcon) Build() falcon.Profile {
	p, timing := f.timing()
	p.CC = f.CC.build(timing)
	apply(p.Keys(), f.Values)
	return p
}

// Check reports every value of the section that is out of range.
func (f *Falcon) Check() error {
	r := &report{}
	f.check(r)
	return r.sorted()
}

func (f *Falcon) check(r *report) {
	oneOf(r, "falcon.profile", f.Profile, ProfileSoftware, ProfileHardware)
	before := len(r.problems)
	p := f.Build()
	checkValues(r, "falcon.", p.Keys(), f.Values)
	f.CC.check(r)
	if len(r.problems) > before {
		return
	}
	least := 0
	for i, v := range []int{p.RUE.Threshold1, p.RUE.Threshold2, p.RUE.Threshold3} {
		key := fmt.Sprintf("falcon.rue.threshold%d", i+1)
		if v < least || v > p.RUE.Size {
			r.add(key, fmt.Sprintf("%s is not between %d, the threshold before it, and size, %d", r.value(key, v), least, p.RUE.Size), "write three rising numbers, from 0 to size")
			return
		}
		least = v
	}
	if err := p.Check(); err != nil {
		r.add("falcon", err.Error(), "")
	}
}

// apply sets the keys for which there is a valid value.
func apply(keys []param.Key, values map[string]any) {
	for _, k := range keys {
		if v, ok := values[k.Name]; ok {
			if wrong, _ := k.Check(v); wrong == "" {
				k.Set(v)
			}
		}
	}
}

// checkValues reports every value that is out of its key's range.
func checkValues(r *report, path string, keys []param.Key, values map[string]any) {
	for _, k := range keys {
		v, given := values[k.Name]
		if !given {
			continue
		}
		if wrong, remedy := k.Check(v); wrong != "" {
			r.add(path+k.Name, wrong, remedy)
		}
		if most, both := values[k.NotAbove]; both && above(v, most) {
			r.add(path+k.Name, fmt.Sprintf("%v is above %s %v", v, k.NotAbove, most), "lower it")
		}
	}
}

func above(a, b any) bool {
	switch a := a.(type) {
	case float64:
		return a > b.(float64)
	case uint32:
		return a > b.(uint32)
	}
	return false
}

// Congestion chooses the congestion control algorithm and overrides its parameters. Package cc
// defines the algorithms, their parameters and bounds.
type Congestion struct {
	Algorithm *string        `yaml:"algorithm" use:"fixed or swift" default:"swift" doc:"the algorithm"`
	Values    map[string]any // by the name of the key
}

func (c *Congestion) parameters(t cc.Timing) cc.Parameters {
	name := cc.Default
	if c.Algorithm != nil {
		name = *c.Algorithm
	}
	d, ok := cc.Lookup(name)
	if !ok {
		d, _ = cc.Lookup(cc.Default)
	}
	return d.Parameters(t)
}

func (c *Congestion) build(t cc.Timing) cc.Algorithm {
	p := c.parameters(t)
	apply(p.Keys(), c.Values)
	return p.New()
}

func (c *Congestion) check(r *report) {
	if c.Algorithm != nil {
		oneOf(r, "falcon.cc.algorithm", *c.Algorithm, cc.Names()...)
	}
	checkValues(r, "falcon.cc.", c.parameters(cc.Hardware).Keys(), c.Values)
}

// groups returns the groups of keys: a name before a dot.
func groups(keys []param.Key) (names []string, in map[string][]param.Key) {
	in = map[string][]param.Key{}
	for _, k := range keys {
		group, _, nested := strings.Cut(k.Name, ".")
		if !nested {
			continue
		}
		if in[group] == nil {
			names = append(names, group)
		}
		in[group] = append(in[group], k)
	}
	return names, in
}

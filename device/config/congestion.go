package config

import (
	"fmt"

	"github.com/falcon-vnic/vnic/falcon/cc"
)

// Congestion chooses the congestion control algorithm and overrides its parameters. Package cc
// defines the algorithms, their parameters and bounds.
type Congestion struct {
	Algorithm *string `yaml:"algorithm"`
	Values    map[string]any
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
	for _, k := range p.Keys() {
		if v, ok := c.Values[k.Name]; ok {
			if wrong, _ := k.Check(v); wrong == "" {
				k.Set(v)
			}
		}
	}
	return p.New()
}

func (c *Congestion) check(r *report) {
	if c.Algorithm != nil {
		oneOf(r, "falcon.cc.algorithm", *c.Algorithm, cc.Names()...)
	}
	for _, k := range c.parameters(cc.Hardware).Keys() {
		v, given := c.Values[k.Name]
		if !given {
			continue
		}
		if wrong, remedy := k.Check(v); wrong != "" {
			r.add("falcon.cc."+k.Name, wrong, remedy)
		}
		if most, both := c.Values[k.NotAbove]; both && above(v, most) {
			r.add("falcon.cc."+k.Name, fmt.Sprintf("%v is above %s %v", v, k.NotAbove, most), "lower it")
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

package config

import (
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/falcon/cc/rue"
)

// RateUpdate overrides parameters of the Rate Update Engine. Each field is described at the field
// of that name in rue.Config and rue.Policy.
type RateUpdate struct {
	Service    *time.Duration `yaml:"service"`
	Latency    *time.Duration `yaml:"latency"`
	Size       *int           `yaml:"size" use:"1 to 65536"`
	Threshold1 *int           `yaml:"threshold1"`
	Threshold2 *int           `yaml:"threshold2"`
	Threshold3 *int           `yaml:"threshold3"`
	Interval   *time.Duration `yaml:"interval"`
	Packets    *uint16        `yaml:"packets"`
}

func (c *RateUpdate) apply(p *rue.Config) {
	overrideTime(&p.Service, c.Service)
	overrideTime(&p.Latency, c.Latency)
	override(&p.Size, c.Size)
	override(&p.Threshold1, c.Threshold1)
	override(&p.Threshold2, c.Threshold2)
	override(&p.Threshold3, c.Threshold3)
	overrideTime(&p.Interval, c.Interval)
	override(&p.Packets, c.Packets)
}

// check checks the given values, and the thresholds in is, which include defaults.
func (c *RateUpdate) check(r *report, is *rue.Config, duration func(string, *time.Duration, time.Duration, time.Duration)) {
	duration("rue.service", c.Service, 0, time.Second)
	duration("rue.latency", c.Latency, 0, time.Second)
	duration("rue.interval", c.Interval, 0, time.Hour)
	if c.Size != nil && (*c.Size < 1 || *c.Size > rue.MaxQueue) {
		r.add("falcon.rue.size", fmt.Sprintf("%d is out of range", *c.Size), fmt.Sprintf("use 1 to %d", rue.MaxQueue))
		return
	}
	least := 0
	for i, v := range []int{is.Threshold1, is.Threshold2, is.Threshold3} {
		key := fmt.Sprintf("falcon.rue.threshold%d", i+1)
		if v < least || v > is.Size {
			r.add(key, fmt.Sprintf("%s is not between %d, the threshold before it, and size, %d", r.value(key, v), least, is.Size), "write three that rise, from 0 to size")
			return
		}
		least = v
	}
}

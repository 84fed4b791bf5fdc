package sim

import (
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/falcon"
)

// Scenario is an experiment in a Network.
type Scenario struct {
	Name    string
	Network NetworkConfig
	Profile falcon.Profile
	Flows   []FlowConfig

	Duration falcon.Time // of the whole run
	WarmUp   falcon.Time // first part of the run, which the totals exclude
	Sample   falcon.Time // time between samples
}

// maxSamples is the maximum of samples in a series.
const maxSamples = 10000

// Check returns an error that names the first invalid value.
func (s *Scenario) Check() error {
	if err := s.Network.Check(); err != nil {
		return fmt.Errorf("network.%w", err)
	}
	if err := s.Profile.Check(); err != nil {
		return fmt.Errorf("falcon: %w", err)
	}
	ms := func(t falcon.Time) time.Duration { return time.Duration(t) }
	switch {
	case s.Duration <= 0 || s.Duration > 100e9:
		return fmt.Errorf("duration: %v is out of range; use up to 100s", ms(s.Duration))
	case s.WarmUp < 0 || s.WarmUp >= s.Duration:
		return fmt.Errorf("warm_up: %v is out of range; use 0s up to the duration, %v", ms(s.WarmUp), ms(s.Duration))
	case s.Sample <= 0 || s.Duration/s.Sample > maxSamples:
		return fmt.Errorf("sample: %v is out of range; use at least %v", ms(s.Sample), ms(s.Duration/maxSamples))
	case len(s.Flows) == 0 || len(s.Flows) > maxFlows:
		return fmt.Errorf("flows: %d flows; use 1 to %d", len(s.Flows), maxFlows)
	}
	for i := range s.Flows {
		if err := s.Flows[i].Check(s.Network.Hosts); err != nil {
			return fmt.Errorf("flows[%d].%w", i, err)
		}
	}
	return nil
}

const maxFlows = 4096

// Run runs a scenario. If its links are impaired, it runs it once more without impairments, for
// comparison. Equal seeds give equal results.
func Run(s *Scenario, seed uint64) (*Result, error) {
	r, err := run(s, seed)
	if err != nil || !s.Network.impaired() {
		return r, err
	}
	ideal := *s
	ideal.Network = s.Network.withoutFaults()
	base, err := run(&ideal, seed)
	if err != nil {
		return nil, err
	}
	if base.Goodput > 0 {
		ratio := r.Goodput / base.Goodput
		r.GoodputOverIdeal = &ratio
	}
	return r, nil
}

func run(s *Scenario, seed uint64) (*Result, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	n, err := NewNetwork(seed, s.Network, falcon.Config{Profile: s.Profile})
	if err != nil {
		return nil, err
	}
	for _, f := range s.Flows {
		if err := n.AddFlow(f); err != nil {
			return nil, err
		}
	}
	m := newMeter(n, s)
	n.Run(m.begin + s.Duration)
	return m.result(s, seed), nil
}

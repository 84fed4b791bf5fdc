package scenario

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/falcon/sim"
)

// File is the content of a scenario file.
type File struct {
	Name     string        `yaml:"name"` // default: the file's
	Network  Network       `yaml:"network"`
	Falcon   config.Falcon `yaml:"falcon"` // as in a NIC's configuration; profile defaults to hardware
	Flows    []Flow        `yaml:"flows"`
	Duration time.Duration `yaml:"duration"` // virtual, of the whole run
	WarmUp   time.Duration `yaml:"warm_up"`  // the start of it, which totals leave out
	Sample   time.Duration `yaml:"sample"`   // distance of samples, default 1/200 of the duration
}

// Network describes the hosts and the switch between them.
type Network struct {
	Hosts  int           `yaml:"hosts"`  // default: what the flows need
	Rate   config.Rate   `yaml:"rate"`   // of every link, as 100G
	RTT    time.Duration `yaml:"rtt"`    // of the empty network
	MTU    int           `yaml:"mtu"`    // data bytes of a packet, default 4096
	Buffer Bytes         `yaml:"buffer"` // of a switch port, as 64K or 6BDP
	Mark   Bytes         `yaml:"mark"`   // ECN threshold of a switch port, 0 = none

	Faults `yaml:",inline"` // of the links from hosts to the switch
	Links  []Links          `yaml:"links"` // of hosts whose links are unlike the others
}

// Faults are what one direction of a link does to frames. Their fields are those of sim.Faults.
type Faults struct {
	Loss        float64       `yaml:"loss"`
	Burst       Burst         `yaml:"burst"`
	Duplicate   float64       `yaml:"duplicate"`
	Reorder     float64       `yaml:"reorder"`
	ReorderBy   int           `yaml:"reorder_by"`
	Outage      time.Duration `yaml:"outage"`
	OutageEvery time.Duration `yaml:"outage_every"`
}

// Burst is the loss model of Gilbert and Elliott.
type Burst struct {
	Enter float64 `yaml:"enter"` // chance before each frame that a good link becomes bad
	Leave float64 `yaml:"leave"` // and that a bad one becomes good
	Loss  float64 `yaml:"loss"`  // while it is bad
}

// Links are both directions of the links of some hosts. What is not given is as on a perfect link.
type Links struct {
	Host  int  `yaml:"host"`
	Count *int `yaml:"count"` // hosts, default 1
	Up    Link `yaml:"up"`    // from the host to the switch
	Down  Link `yaml:"down"`
}

// Link is one direction.
type Link struct {
	Rate   config.Rate   `yaml:"rate"`  // default: the network's
	Delay  time.Duration `yaml:"delay"` // beside what the network's round trip has
	Faults `yaml:",inline"`
}

func (f *Faults) build() sim.Faults {
	return sim.Faults{
		Loss: f.Loss, Burst: sim.Burst(f.Burst), Duplicate: f.Duplicate, Reorder: f.Reorder, ReorderBy: f.ReorderBy,
		Outage: int64(f.Outage), OutageEvery: int64(f.OutageEvery),
	}
}

func (l *Link) build() sim.LinkConfig {
	return sim.LinkConfig{Rate: int64(l.Rate), Delay: int64(l.Delay), Faults: l.Faults.build()}
}

// Flow describes connections that do the same: each of the hosts from, from+1, … opens some to each
// of the hosts to, to+1, …, but itself.
type Flow struct {
	From        int           `yaml:"from"`
	Senders     *int          `yaml:"senders"` // hosts, default 1
	To          int           `yaml:"to"`
	Receivers   *int          `yaml:"receivers"`   // hosts, default 1
	Count       *int          `yaml:"count"`       // connections of each sender to each receiver, default 1
	Op          string        `yaml:"op"`          // push (default) or pull
	Ordered     *bool         `yaml:"ordered"`     // default true
	Sizes       []int         `yaml:"sizes"`       // bytes, drawn at random
	Outstanding int           `yaml:"outstanding"` // operations at once
	Rate        config.Rate   `yaml:"rate"`        // at which each sender's operations arrive, over all its connections
	Arrivals    string        `yaml:"arrivals"`    // uniform (default) or poisson
	Start       time.Duration `yaml:"start"`
	Stagger     time.Duration `yaml:"stagger"` // the i-th starts i times that later
}

// maxFile bounds what is read.
const maxFile = 1 << 20

// Load reads and checks the scenario at path. Its error names the file and lists the problems
// found.
func Load(path string) (*sim.Scenario, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("scenario: %w; give the path of a file like those in falcon/sim/scenarios", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("scenario %s: %w", path, err)
	}
	s, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("scenario %s:\n%w", path, err)
	}
	if s.Name == "" {
		s.Name = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	}
	return s, nil
}

// Parse reads and checks a scenario.
func Parse(b []byte) (*sim.Scenario, error) {
	f := File{Falcon: config.Falcon{Profile: config.ProfileHardware}}
	if err := config.Decode(b, &f, nil); err != nil {
		return nil, err
	}
	if err := f.Falcon.Check(); err != nil {
		return nil, err
	}
	if strings.ContainsAny(f.Name, "/\\") || len(f.Name) > 100 {
		return nil, fmt.Errorf("name: %.100q cannot be part of a file name; leave out slashes and be short", f.Name)
	}
	s := &sim.Scenario{
		Name: f.Name, Profile: f.Falcon.Build(),
		Duration: int64(f.Duration), WarmUp: int64(f.WarmUp), Sample: int64(f.Sample),
	}
	if s.Sample == 0 {
		s.Sample = max(s.Duration/200, 1)
	}
	for i := range f.Flows {
		if err := f.Flows[i].expand(s); err != nil {
			return nil, fmt.Errorf("flows[%d].%w", i, err)
		}
	}
	n := &f.Network
	bdp := float64(n.Rate) * n.RTT.Seconds() / 8
	s.Network = sim.NetworkConfig{
		Hosts: n.Hosts, Rate: int64(n.Rate), RTT: int64(n.RTT), MTU: n.MTU, Buffer: n.Buffer.of(bdp), Mark: n.Mark.of(bdp),
		Faults: n.Faults.build(),
	}
	for i := range n.Links {
		l := &n.Links[i]
		count := 1
		override(&count, l.Count)
		s.Network.Links = append(s.Network.Links, sim.HostLinks{Host: l.Host, Count: count, Up: l.Up.build(), Down: l.Down.build()})
	}
	if n.Hosts == 0 {
		s.Network.Hosts = 2
		for _, f := range s.Flows {
			s.Network.Hosts = max(s.Network.Hosts, f.From+1, f.To+1)
		}
	}
	return s, s.Check()
}

// maxCount bounds the connections of one sender.
const maxCount = 1024

func (f *Flow) expand(s *sim.Scenario) error {
	senders, receivers, count, ordered := 1, 1, 1, true
	override(&senders, f.Senders)
	override(&receivers, f.Receivers)
	override(&count, f.Count)
	override(&ordered, f.Ordered)
	switch {
	case senders < 1 || senders >= sim.MaxHosts:
		return fmt.Errorf("senders: %d is out of range; use 1 to %d", senders, sim.MaxHosts-1)
	case receivers < 1 || receivers > sim.MaxHosts:
		return fmt.Errorf("receivers: %d is out of range; use 1 to %d", receivers, sim.MaxHosts)
	case count < 1 || count > maxCount:
		return fmt.Errorf("count: %d is out of range; use 1 to %d", count, maxCount)
	case f.Op != "" && f.Op != "push" && f.Op != "pull":
		return fmt.Errorf("op: %q is not an operation; use push or pull", f.Op)
	case f.Arrivals != "" && f.Rate == 0:
		return fmt.Errorf("arrivals: %q needs a rate; give one, or leave it out", f.Arrivals)
	case f.Arrivals != "" && f.Arrivals != "uniform" && f.Arrivals != "poisson":
		return fmt.Errorf("arrivals: %q is not a distribution; use uniform or poisson", f.Arrivals)
	case f.Stagger < 0 || f.Stagger > time.Second:
		return fmt.Errorf("stagger: %v is out of range; use 0s to 1s", f.Stagger)
	}
	start := int64(f.Start)
	for from := f.From; from < f.From+senders; from++ {
		var tos []int
		for to := f.To; to < f.To+receivers; to++ {
			if to != from || receivers == 1 {
				tos = append(tos, to)
			}
		}
		for i := range len(tos) * count {
			s.Flows = append(s.Flows, sim.FlowConfig{
				From: from, To: tos[i/count], Pull: f.Op == "pull", Ordered: ordered, Sizes: f.Sizes,
				Outstanding: f.Outstanding, Start: start,
				Rate: int64(f.Rate) / int64(len(tos)*count), Poisson: f.Arrivals == "poisson",
			})
			start += int64(f.Stagger)
		}
	}
	return nil
}

func override[T any](v *T, with *T) {
	if with != nil {
		*v = *with
	}
}

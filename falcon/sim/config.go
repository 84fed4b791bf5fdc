package sim

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/falcon-vnic/vnic/falcon"
)

// MaxHosts is the maximum of hosts in a network.
const MaxHosts = 1024

// NetworkConfig describes hosts around one switch.
type NetworkConfig struct {
	Hosts  int
	Rate   int64       // of every link, bits per second
	RTT    falcon.Time // round trip of an empty network, without serialisation
	MTU    int         // largest ULP part of a packet, bytes; larger operations take several packets; 0: MTU
	Buffer int         // of every switch port, bytes; what does not fit is dropped
	Mark   int         // a port with more bytes than this marks Congestion Experienced, 0 = never

	Faults             // of the links from hosts to the switch
	Links  []HostLinks // links that differ from the others; if several match a host, the last one counts
}

// Check returns an error that names the first invalid value.
func (c *NetworkConfig) Check() error {
	switch {
	case c.Hosts < 2 || c.Hosts > MaxHosts:
		return fmt.Errorf("hosts: %d is out of range; use 2 to %d", c.Hosts, MaxHosts)
	case c.Rate < 1e6 || c.Rate > 1e13:
		return fmt.Errorf("rate: %d bit/s is out of range; use 1 Mbit/s to 10 Tbit/s", c.Rate)
	case c.RTT < 0 || c.RTT > 1e9:
		return fmt.Errorf("rtt: %d ns is out of range; use 0 to 1 s", c.RTT)
	case c.MTU < 0 || c.MTU > MaxMTU:
		return fmt.Errorf("mtu: %d bytes is out of range; use 1 to %d, or 0 for %d", c.MTU, MaxMTU, MTU)
	case c.Buffer < c.frame() || c.Buffer > 1<<32:
		return fmt.Errorf("buffer: %d bytes is out of range; use at least a frame, %d bytes, and at most 4 GiB", c.Buffer, c.frame())
	case c.Mark < 0:
		return fmt.Errorf("mark: %d is negative; use 0 for no marks", c.Mark)
	}
	for i := range c.Links {
		l := &c.Links[i]
		if l.Host < 0 || l.Count < 1 || l.Host+l.Count > c.Hosts {
			return fmt.Errorf("links[%d]: there are no hosts %d to %d; use 0 to %d", i, l.Host, l.Host+l.Count-1, c.Hosts-1)
		}
		if err := l.Up.check(); err != nil {
			return fmt.Errorf("links[%d].up.%w", i, err)
		}
		if err := l.Down.check(); err != nil {
			return fmt.Errorf("links[%d].down.%w", i, err)
		}
	}
	return c.Faults.check()
}

// packet and frame return the most bytes of a Falcon packet, and of a frame with one.
func (c *NetworkConfig) packet() int { return headers + cmp.Or(c.MTU, MTU) }

func (c *NetworkConfig) frame() int { return c.packet() + Overhead }

// impaired reports whether any link has faults.
func (c *NetworkConfig) impaired() bool {
	for i := range c.Links {
		if !c.Links[i].Up.none() || !c.Links[i].Down.none() {
			return true
		}
	}
	return !c.Faults.none()
}

// withoutFaults returns the same network with perfect links.
func (c NetworkConfig) withoutFaults() NetworkConfig {
	c.Faults, c.Links = Faults{}, slices.Clone(c.Links)
	for i := range c.Links {
		c.Links[i].Up.Faults, c.Links[i].Down.Faults = Faults{}, Faults{}
	}
	return c
}

// links returns the configuration of a host's links.
func (c *NetworkConfig) links(host int) (up, down LinkConfig) {
	up.Faults = c.Faults
	for i := range c.Links {
		if l := &c.Links[i]; host >= l.Host && host < l.Host+l.Count {
			up, down = l.Up, l.Down
		}
	}
	return up, down
}

// Faults describes what one direction of a link does to frames. Shares are 0..1 and independent.
type Faults struct {
	Loss      float64 // share of frames lost
	Burst     Burst   // losses that come together
	Duplicate float64 // share of frames that arrive twice
	Reorder   float64 // share of frames held back until later ones have passed
	ReorderBy int     // maximum of frames that pass it

	Outage, OutageEvery falcon.Time // everything is lost for Outage at the end of each OutageEvery
}

// Burst is the loss model of Gilbert and Elliott. A link is good and loses nothing, or it is bad.
// Its state may change before each frame.
type Burst struct {
	Enter float64 // chance that a good link becomes bad; 0 = never
	Leave float64 // chance that a bad link becomes good
	Loss  float64 // share of frames lost while it is bad
}

// none reports whether the link is perfect.
func (f *Faults) none() bool { return *f == Faults{ReorderBy: f.ReorderBy} }

func (f *Faults) check() error {
	for _, s := range []struct {
		name string
		v    float64
	}{
		{"loss", f.Loss},
		{"duplicate", f.Duplicate},
		{"reorder", f.Reorder},
		{"burst.enter", f.Burst.Enter},
		{"burst.leave", f.Burst.Leave},
		{"burst.loss", f.Burst.Loss},
	} {
		if !(s.v >= 0 && s.v <= 1) {
			return fmt.Errorf("%s: %v is not a share; use 0 to 1, as 0.01 for 1 %%", s.name, s.v)
		}
	}
	switch {
	case f.Loss == 1:
		return fmt.Errorf("loss: 1 loses every frame; use less")
	case f.Burst.Enter > 0 && (f.Burst.Leave == 0 || f.Burst.Loss == 0):
		return fmt.Errorf("burst: a link that becomes bad needs leave and loss above 0")
	case f.ReorderBy < 0 || f.ReorderBy > 64 || f.Reorder > 0 && f.ReorderBy == 0:
		return fmt.Errorf("reorder_by: %d is out of range; use 1 to 64 positions", f.ReorderBy)
	case f.Outage < 0 || f.OutageEvery < 0 || f.Outage > 0 && f.Outage >= f.OutageEvery:
		return fmt.Errorf("outage: %d ns is out of range; use less than outage_every, %d ns", f.Outage, f.OutageEvery)
	}
	return nil
}

// LinkConfig is one direction of a host's link.
type LinkConfig struct {
	Rate  int64       // bits per second, 0 = the network's
	Delay falcon.Time // propagation delay, in addition to the network's round trip
	Faults
}

func (c *LinkConfig) check() error {
	switch {
	case c.Rate != 0 && (c.Rate < 1e6 || c.Rate > 1e13):
		return fmt.Errorf("rate: %d bit/s is out of range; use 1 Mbit/s to 10 Tbit/s", c.Rate)
	case c.Delay < 0 || c.Delay > 1e9:
		return fmt.Errorf("delay: %d ns is out of range; use 0 to 1 s", c.Delay)
	}
	return c.Faults.check()
}

// HostLinks configures the links of some hosts that differ from the others.
type HostLinks struct {
	Host, Count int        // the first host, and how many
	Up, Down    LinkConfig // from the host to the switch, and back
}

package sim

import (
	"fmt"
	"slices"

	"github.com/falcon-vnic/vnic/falcon"
)

// NetworkConfig describes hosts around one switch.
type NetworkConfig struct {
	Hosts  int
	Rate   int64       // of every link, bits per second
	RTT    falcon.Time // round trip of an empty network, without serialisation
	Buffer int         // of every switch port, bytes; what does not fit is dropped
	Mark   int         // a port with more bytes than this marks Congestion Experienced, 0 = never

	Faults             // of the links from hosts to the switch
	Links  []HostLinks // links unlike the others; of two for one host the later counts
}

// Check returns an error naming the first impossible value.
func (c *NetworkConfig) Check() error {
	switch {
	case c.Hosts < 2 || c.Hosts > MaxHosts:
		return fmt.Errorf("hosts: %d is out of range; use 2 to %d", c.Hosts, MaxHosts)
	case c.Rate < 1e6 || c.Rate > 1e13:
		return fmt.Errorf("rate: %d bit/s is out of range; use 1 Mbit/s to 10 Tbit/s", c.Rate)
	case c.RTT < 0 || c.RTT > 1e9:
		return fmt.Errorf("rtt: %d ns is out of range; use 0 to 1 s", c.RTT)
	case c.Buffer < maxFrame || c.Buffer > 1<<32:
		return fmt.Errorf("buffer: %d bytes is out of range; use at least a frame, %d bytes, and at most 4 GiB", c.Buffer, maxFrame)
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

// impaired reports whether any link has faults.
func (c *NetworkConfig) impaired() bool {
	for i := range c.Links {
		if !c.Links[i].Up.none() || !c.Links[i].Down.none() {
			return true
		}
	}
	return !c.Faults.none()
}

// withoutFaults is the same network with perfect links.
func (c NetworkConfig) withoutFaults() NetworkConfig {
	c.Faults, c.Links = Faults{}, slices.Clone(c.Links)
	for i := range c.Links {
		c.Links[i].Up.Faults, c.Links[i].Down.Faults = Faults{}, Faults{}
	}
	return c
}

const (
	// MaxHosts bounds a network.
	MaxHosts = 1024
	// MTU is the largest ULP part of a packet in a Network.
	MTU = 4200
	// Overhead is what a frame carries beside the Falcon packet: preamble, gap and FCS 24, Ethernet
	// 14, IPv4 20, UDP 8, PSP 24, inner IPv4 20, ICV 16 bytes.
	Overhead = 126
	// hops is the forward hop count of every packet: one switch.
	hops = 1

	maxPacket = 64 + MTU
	maxFrame  = maxPacket + Overhead
	picos     = 1000
)

// Network is hosts joined by a switch with one egress queue per host, in virtual time.
//
//	Host 0 ──▶ uplink ──▶ ┌────────┐ ──▶ port 1: queue ──▶ Host 1
//	Host 1 ──▶ uplink ──▶ │ switch │ ──▶ port 0: queue ──▶ Host 0
//	                      └────────┘
//
// A host asks its engine for a packet whenever its uplink is idle, as a NIC does. Packets travel by
// reference, are never corrupted and carry no payload: what is delivered is World's business, how
// fast is this one's.
type Network struct {
	Now   falcon.Time
	Hosts []*Host
	Ports []Port // Ports[i] leads to host i

	cfg    NetworkConfig
	seed   uint64
	lines  []*line
	events eventHeap
	order  uint64
	free   *packet
	flows  []*flow
	hook   func() // of the sampling event
}

// Port is an egress queue of the switch. It needs no queue in fact: in a FIFO the time a packet
// leaves is known when it comes, and how much is queued follows from the time the last one leaves.
type Port struct {
	Sent, Dropped, Marked uint64 // packets
	Bytes                 uint64
	Peak                  int // most bytes queued since the owner of the network cleared it

	line *line // busy until the last packet leaves
}

type packet struct {
	next    *packet
	n       int // bytes of the Falcon packet
	dst     *Host
	to      *endpoint // the receiving end
	t1      uint32
	ce      bool
	window  int8 // of the PSN: request, data, −1 for acknowledgements
	psn     uint32
	release uint64 // index of the frame after which a held one goes
	copied  bool   // by the network
	buf     [maxPacket]byte
}

// NewNetwork returns a network whose hosts have engines with the given configuration. Equal seeds
// give equal runs.
func NewNetwork(seed uint64, cfg NetworkConfig, engine falcon.Config) (*Network, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	n := &Network{cfg: cfg, seed: seed, Now: 1e6, Ports: make([]Port, cfg.Hosts)}
	for i := range cfg.Hosts {
		h := &Host{net: n, index: i, wake: never}
		h.Engine = falcon.NewEngine(engine, h)
		n.Hosts = append(n.Hosts, h)
		up, down := cfg.links(i)
		seed := Mix(seed + Mix(uint64(i)))
		h.line = n.newLine(seed, up, atSwitch)
		n.Ports[i].line = n.newLine(Mix(^seed), down, atHost)
	}
	return n, nil
}

// links are those of a host.
func (c *NetworkConfig) links(host int) (up, down LinkConfig) {
	up.Faults = c.Faults
	for i := range c.Links {
		if l := &c.Links[i]; host >= l.Host && host < l.Host+l.Count {
			up, down = l.Up, l.Down
		}
	}
	return up, down
}

func (n *Network) newLine(seed uint64, cfg LinkConfig, arrival eventKind) *line {
	if cfg.Rate == 0 {
		cfg.Rate = n.cfg.Rate
	}
	l := &line{net: n, cfg: cfg, index: len(n.lines), arrival: arrival, seed: seed}
	n.lines = append(n.lines, l)
	return l
}

// Run moves the clock to the given time.
func (n *Network) Run(until falcon.Time) {
	for len(n.events) > 0 && n.events[0].at <= until {
		ev := n.events.pop()
		n.Now = max(n.Now, ev.at)
		switch ev.kind {
		case atSwitch:
			n.forward(ev.packet)
		case atHost:
			n.Hosts[ev.host].receive(ev.packet)
		case uplinkIdle:
			h := n.Hosts[ev.host]
			h.sending = false
			h.serve()
		case timerDue:
			if h := n.Hosts[ev.host]; h.wake == ev.at {
				h.wake = never
				h.Engine.Advance(n.Now)
				h.serve()
			}
		case holdOver:
			n.lines[ev.host].releaseAll()
		case flowStart:
			h := n.Hosts[ev.host]
			for _, f := range h.flows {
				f.issue()
			}
			h.serve()
		case sampling:
			n.hook()
		}
	}
	n.Now = max(n.Now, until)
}

// forward queues a packet that reached the switch.
func (n *Network) forward(p *packet) {
	port, size := &n.Ports[p.dst.index], p.n+Overhead
	now := n.Now * picos
	queued := 0
	if port.line.busy > now {
		queued = int(float64(port.line.busy-now) * float64(port.line.cfg.Rate) / 8e12)
	}
	if queued+size > n.cfg.Buffer {
		port.Dropped++
		n.lost(p)
		return
	}
	if n.cfg.Mark > 0 && queued > n.cfg.Mark {
		p.ce = true
		port.Marked++
	}
	port.Peak = max(port.Peak, queued+size)
	port.Sent++
	port.Bytes += uint64(size)
	port.line.occupy(size)
	port.line.send(p)
}

// lost ends a packet that the network dropped.
func (n *Network) lost(p *packet) {
	p.to.peer.ended(p, true)
	n.put(p)
}

// hop is the propagation time of one of the four links of a round trip.
func (n *Network) hop() falcon.Time { return n.cfg.RTT / 4 }

func (n *Network) get() *packet {
	p := n.free
	if p == nil {
		return new(packet)
	}
	n.free = p.next
	p.next, p.ce, p.copied = nil, false, false
	return p
}

// copy returns a second copy of a packet on its way.
func (n *Network) copy(p *packet) *packet {
	q := n.get()
	q.n, q.dst, q.to, q.t1, q.ce, q.window, q.psn, q.copied = p.n, p.dst, p.to, p.t1, p.ce, p.window, p.psn, true
	copy(q.buf[:q.n], p.buf[:p.n])
	return q
}

func (n *Network) put(p *packet) {
	p.next, p.dst, p.to = n.free, nil, nil
	n.free = p
}

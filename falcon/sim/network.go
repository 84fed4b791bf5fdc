package sim

import (
	"fmt"

	"github.com/falcon-vnic/vnic/falcon"
)

// NetworkConfig describes hosts around one switch. All links are alike.
type NetworkConfig struct {
	Hosts  int
	Rate   int64       // of every link, bits per second
	RTT    falcon.Time // round trip of an empty network, without serialisation
	Buffer int         // of every switch port, bytes; what does not fit is dropped
	Mark   int         // a port with more bytes than this marks Congestion Experienced, 0 = never

	// Impairments of the links from hosts to the switch.
	Loss      float64 // share of frames lost, 0..1
	Reorder   float64 // share of frames held back until later ones have passed
	ReorderBy int     // how many later ones pass at most
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
	case !(c.Loss >= 0 && c.Loss < 1):
		return fmt.Errorf("loss: %v is not a share; use 0 up to 1, as 0.01 for 1 %%", c.Loss)
	case !(c.Reorder >= 0 && c.Reorder <= 1):
		return fmt.Errorf("reorder: %v is not a share; use 0 to 1", c.Reorder)
	case c.ReorderBy < 0 || c.ReorderBy > 64 || c.Reorder > 0 && c.ReorderBy == 0:
		return fmt.Errorf("reorder_by: %d is out of range; use 1 to 64 positions", c.ReorderBy)
	}
	return nil
}

const (
	// MaxHosts bounds a network: an incast of 64 to 1.
	MaxHosts = 65
	// MTU is the largest ULP part of a packet in a Network.
	MTU = 4200
	// Overhead is what a frame carries beside the Falcon packet: preamble, gap and FCS 24, Ethernet 14, IPv4 20, UDP 8,
	// PSP 24, inner IPv4 20, ICV 16 bytes.
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
// A host asks its engine for a packet whenever its uplink is idle, as a NIC does. Packets travel by reference, are never
// corrupted and carry no payload: what is delivered is World's business, how fast is this one's.
type Network struct {
	Now   falcon.Time
	Hosts []*Host
	Ports []Port // Ports[i] leads to host i

	cfg    NetworkConfig
	seed   uint64
	events eventHeap
	order  uint64
	free   *packet
	flows  []*flow
	hook   func() // of the sampling event
}

// Port is an egress queue of the switch. It needs no queue in fact: in a FIFO the time a packet leaves is known when it
// comes, and how much is queued follows from the time the last one leaves.
type Port struct {
	Sent, Dropped, Marked uint64 // packets
	Bytes                 uint64
	Peak                  int // most bytes queued since the owner of the network cleared it

	busy int64 // picoseconds: the last packet leaves then
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
	buf     [maxPacket]byte
}

// NewNetwork returns a network whose hosts have engines with the given configuration. Equal seeds give equal runs.
func NewNetwork(seed uint64, cfg NetworkConfig, engine falcon.Config) (*Network, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	n := &Network{cfg: cfg, seed: seed, Now: 1e6, Ports: make([]Port, cfg.Hosts)}
	for i := range cfg.Hosts {
		h := &Host{net: n, index: i, seed: Mix(seed + Mix(uint64(i))), wake: never}
		h.Engine = falcon.NewEngine(engine, h)
		n.Hosts = append(n.Hosts, h)
	}
	return n, nil
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
			n.Hosts[ev.host].releaseAll()
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
	if port.busy > now {
		queued = int(float64(port.busy-now) * float64(n.cfg.Rate) / 8e12)
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
	port.busy = max(port.busy, now) + n.serialise(size)
	n.at(port.busy/picos+n.hop(), atHost, p.dst.index, p)
}

// lost ends a packet that the network dropped.
func (n *Network) lost(p *packet) {
	p.to.peer.ended(p, true)
	n.put(p)
}

// serialise is how long a frame occupies a link, picoseconds.
func (n *Network) serialise(size int) int64 { return int64(float64(size) * 8e12 / float64(n.cfg.Rate)) }

// hop is the propagation time of one of the four links of a round trip.
func (n *Network) hop() falcon.Time { return n.cfg.RTT / 4 }

func (n *Network) get() *packet {
	p := n.free
	if p == nil {
		return new(packet)
	}
	n.free = p.next
	p.next, p.ce = nil, false
	return p
}

func (n *Network) put(p *packet) {
	p.next, p.dst, p.to = n.free, nil, nil
	n.free = p
}

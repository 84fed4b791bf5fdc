package sim

import (
	"cmp"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// Network joins hosts by a switch with one egress queue per host, in virtual time.
//
//	Host 0 ──▶ uplink ──▶ ┌────────┐ ──▶ port 1: queue ──▶ Host 1
//	Host 1 ──▶ uplink ──▶ │ switch │ ──▶ port 0: queue ──▶ Host 0
//	                      └────────┘
//
// A host asks its engine for a packet whenever its uplink is idle, as a NIC does. Packets are
// passed by reference, are never corrupted and carry no payload: World tests what is delivered,
// Network how fast.
type Network struct {
	Now   falcon.Time
	Hosts []*Host
	Ports []Port // Ports[i] leads to host i

	cfg     NetworkConfig
	seed    uint64
	lines   []*line
	events  events
	packets packets
	flows   []*flow
	warm    func() // called at the warmedUp event
	hook    func() // called at the sampling event

	completions completions
}

// Port is an egress queue of the switch. It stores no packets: in a FIFO the time at which a packet
// leaves is known when it arrives, and the queue length follows from the time at which the last
// packet leaves.
type Port struct {
	Sent, Dropped, Marked uint64 // packets
	Bytes                 uint64
	Peak                  int // maximum of bytes queued since the owner of the network cleared it

	line *line // busy until the last packet leaves
}

// NewNetwork returns a network whose hosts have engines with the given configuration. Equal seeds
// give equal runs.
func NewNetwork(seed uint64, cfg NetworkConfig, engine falcon.Config) (*Network, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	cfg.MTU = cmp.Or(cfg.MTU, MTU)
	n := &Network{cfg: cfg, seed: seed, Now: 1e6, Ports: make([]Port, cfg.Hosts), packets: packets{length: cfg.packet()}}
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

func (n *Network) newLine(seed uint64, cfg LinkConfig, arrival eventKind) *line {
	if cfg.Rate == 0 {
		cfg.Rate = n.cfg.Rate
	}
	l := &line{net: n, cfg: cfg, index: len(n.lines), arrival: arrival, seed: seed}
	n.lines = append(n.lines, l)
	return l
}

// firstFlow keeps the seeds of flows apart from those of hosts.
const firstFlow = 1 << 20

// AddFlow opens a flow's connection. The flow starts at a random time, drawn from the seed, within
// a round trip after its start time, because flows that start together would otherwise move in
// step.
func (n *Network) AddFlow(cfg FlowConfig) error {
	if err := cfg.Check(len(n.Hosts)); err != nil {
		return err
	}
	f := &flow{cfg: cfg, net: n, index: len(n.flows), rnd: Mix(n.seed ^ Mix(uint64(len(n.flows)|firstFlow)))}
	f.start = n.Now + cfg.Start + falcon.Time(draw(f.rnd, 0, drawJitter)*float64(n.cfg.RTT))
	f.arrivals = newArrivals(&cfg, f.start, Mix(^f.rnd))
	f.from, f.to = &endpoint{flow: f, host: cfg.From}, &endpoint{flow: f, host: cfg.To}
	f.from.peer, f.to.peer = f.to, f.from
	cid := uint32(2 * len(n.flows))
	conn := falcon.ConnConfig{LocalCID: cid, RemoteCID: cid + 1, Protocol: wire.ProtocolRDMA, Ordered: cfg.Ordered, MTU: n.cfg.MTU, User: f.from}
	var err error
	if f.from.conn, err = n.Hosts[cfg.From].Engine.Open(n.Now, conn); err != nil {
		return err
	}
	conn = Mirror(conn)
	conn.User = f.to
	if f.to.conn, err = n.Hosts[cfg.To].Engine.Open(n.Now, conn); err != nil {
		return err
	}
	n.flows = append(n.flows, f)
	f.expect(f.start)
	return nil
}

// Run moves the clock to the given time.
func (n *Network) Run(until falcon.Time) {
	for n.events.due(until) {
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
		case arrival:
			f := n.flows[ev.host]
			f.issue(n.Now)
			n.Hosts[f.from.host].serve()
		case warmedUp:
			n.warm()
		case sampling:
			n.hook()
		}
	}
	n.Now = max(n.Now, until)
}

// forward queues a packet that reached the switch.
func (n *Network) forward(p *packet) {
	port, size := &n.Ports[p.dst], p.n+Overhead
	now := n.Now * picos
	queued := int(float64(max(port.line.busy-now, 0)) * float64(port.line.cfg.Rate) / 8e12)
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
	p.from.ended(p, true)
	n.packets.put(p)
}

// hop returns the propagation time of one of the four links of a round trip.
func (n *Network) hop() falcon.Time { return n.cfg.RTT / 4 }

package roce

import (
	"net/netip"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Port is a function in its network.
type Port struct {
	Addr  netip.Addr // of the function
	MTU   int        // longest IP packet
	Owner any        // the engine's owner's

	e      *Engine
	closed bool
	conns  map[uint32]*Conn // by queue pair
	talks  list.Node[Port]  // in Engine.talking: has datagrams to send
	stats  Stats
	datagrams
}

// Stats counts the packets of a port.
type Stats struct {
	Received uint64 // that were for somebody
	Sent     uint64
	Again    uint64 // requests sent again
	Timeouts uint64 // times that nothing was answered in time
	Missing  uint64 // times that the peer, or an answer, said that a packet was missing
	Refused  uint64 // requests of peers that were answered with an error
	Wrong    uint64 // no RoCEv2, or a wrong ICRC
	Strange  uint64 // for nobody: no such queue pair, other addresses, partition or service
	Marked   uint64 // with a mark of congestion
	CNPs     uint64 // congestion notifications received
	CNPsSent uint64
}

// Add adds o to s.
func (s *Stats) Add(o *Stats) {
	s.Received += o.Received
	s.Sent += o.Sent
	s.Again += o.Again
	s.Timeouts += o.Timeouts
	s.Missing += o.Missing
	s.Refused += o.Refused
	s.Wrong += o.Wrong
	s.Strange += o.Strange
	s.Marked += o.Marked
	s.CNPs += o.CNPs
	s.CNPsSent += o.CNPsSent
}

// Way says how a connection's packets travel.
type Way struct {
	Peer      netip.Addr
	Class     uint8  // traffic class, without ECN
	Hops      uint8  // 0: 64
	FlowLabel uint32 // 0: by the queue pairs' numbers
}

// usualHops is what packets begin with where nobody says otherwise.
const usualHops = 64

// Open makes a connection, to be given to a queue pair. credits is where it takes what it sends
// from; nil: nowhere.
func (p *Port) Open(w Way, credits *credit.Node) *Conn {
	c := &Conn{e: p.e, port: p, credits: credits, way: p.way(w)}
	c.way.Class |= wire.ECT0
	return c
}

// way is what the headers of packets that go a way have in common.
func (p *Port) way(w Way) wire.Way {
	hops := w.Hops
	if hops == 0 {
		hops = usualHops
	}
	return wire.Way{Src: p.Addr, Dst: w.Peer, Class: w.Class &^ wire.ECNMask, Hops: hops, Flow: w.FlowLabel}
}

// firstSource begins the range of UDP source ports.
const firstSource = 0xc000

// source is the UDP source port of a flow (Annex A17.9.4): by the flow label if there is one, as
// Linux does it, else by the queue pairs.
func source(flow, qpn, peer uint32) uint16 {
	if flow == 0 {
		flow = (qpn*0x9e3779b1 ^ peer*0x85ebca6b) >> 12
	}
	return firstSource | uint16(flow^flow>>14)&0x3fff
}

// join lets packets find a connection that its queue pair took. One that the queue pair had before
// has ended.
func (p *Port) join(c *Conn) {
	if old := p.conns[c.terms.QPN]; old != nil {
		old.leave()
	}
	c.way.SrcPort = source(c.way.Flow, c.terms.QPN, c.terms.Peer)
	p.conns[c.terms.QPN] = c
}

func (p *Port) leave(c *Conn) {
	if p.conns[c.terms.QPN] == c {
		delete(p.conns, c.terms.QPN)
	}
}

// Close ends the port. Its queue pairs have gone.
func (p *Port) Close() {
	if !p.closed {
		p.e.closed.Add(&p.stats)
		delete(p.e.ports, p)
	}
	p.closed = true
	p.drop()
	for _, c := range p.conns {
		c.letGo()
		c.leave()
	}
}

// Stats returns the counters.
func (p *Port) Stats() Stats { return p.stats }

// Receive takes an IP packet for the port, UDP 4791. What is wrong with it is dropped without a word
// (Annex A17, CA17-24), and counted.
func (p *Port) Receive(now transport.Time, packet []byte) {
	h := &p.e.in
	way, part, err := wire.Parse(packet)
	n := 0
	if err == nil {
		n, err = h.Parse(part)
	}
	data, ok := h.BTH.Data(part, n)
	if err != nil || !ok {
		p.stats.Wrong++
		return
	}
	if way.Class&wire.ECNMask == wire.ECNCE {
		p.stats.Marked++
	}
	if h.BTH.Opcode&wire.ServiceMask == wire.UD && way.Dst == p.Addr {
		p.stats.Received++
		p.takeDatagram(now, h, packet, data)
		return
	}
	c := p.conns[h.BTH.DestQP]
	if c == nil || way.Src != c.way.Dst || way.Dst != c.way.Src || h.BTH.PKey&0x7fff != wire.DefaultPKey&0x7fff || !c.speaks(h.BTH.Opcode) {
		p.stats.Strange++
		return
	}
	p.stats.Received++
	c.receive(now, h, data, way.Class&wire.ECNMask == wire.ECNCE)
}

// receive takes a packet of the peer.
func (c *Conn) receive(now transport.Time, h *wire.Headers, data []byte, marked bool) {
	op := h.BTH.Opcode
	if op == wire.CNP {
		c.port.stats.CNPs++
		c.e.congestion.Notified(&c.traffic, now)
		return
	}
	if marked {
		c.marked = true
		c.wake()
	}
	if op.Info().Response {
		c.response(now, h, data)
	} else {
		c.request(now, h, data)
	}
	if c.user != nil {
		c.user.Settle(now)
	}
}

// speaks reports whether an opcode is of the connection's service (IBA §9.6.1.3.2).
func (c *Conn) speaks(op wire.Opcode) bool {
	service := op & wire.ServiceMask
	return op == wire.CNP || service == c.service || service == c.service|wire.Vendor
}

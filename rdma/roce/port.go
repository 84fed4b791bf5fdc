package roce

import (
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/fair"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/tape"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// Port is a function in its network.
type Port struct {
	Addr netip.Addr // of the function
	MTU  int        // longest IP packet

	owner  any
	e      *Engine
	closed bool
	conns  map[uint32]*Conn // by queue pair
	flow   fair.Flow[Port]
	line   list.List[Conn] // with something to send, next first
	turn   bool            // of datagrams
	stats  transport.PortStats
	behind trace.Event // what NoteSent notes behind the packet; no kind: nothing

	datagrams datagrams
	notices   notices
}

var (
	_ transport.Port     = (*Port)(nil)
	_ transport.Opener   = (*Port)(nil)
	_ verbs.Destinations = (*Port)(nil)
)

// Owner implements transport.Port.
func (p *Port) Owner() any { return p.owner }

// Move implements transport.Port.
func (p *Port) Move(owner any, mtu int) { p.owner, p.MTU = owner, mtu }

// usualHops is the hop limit where the driver names none.
const usualHops = 64

// Open implements transport.Opener. It returns a *Conn.
func (p *Port) Open(now transport.Time, w transport.Way, credits *credit.Node) transport.Conn {
	c := &Conn{end: end{e: p.e, port: p, way: p.way(w)}, opened: now}
	c.end.conn, c.requester.end, c.responder.end = c, &c.end, &c.end
	c.requester.credits = credits
	c.end.way.Class |= wire.ECT0
	return c
}

// way returns the header fields that all packets of a way share.
func (p *Port) way(w transport.Way) wire.Way {
	hops := w.Hops
	if hops == 0 {
		hops = usualHops
	}
	return wire.Way{Src: p.Addr, Dst: w.Peer, Class: w.Class &^ wire.ECNMask, Hops: hops, Flow: w.FlowLabel}
}

// firstSource begins the range of UDP source ports.
const firstSource = 0xc000

// source is the UDP source port of a flow (Annex A17.9.4): by the flow label if there is one, else
// by the queue pairs, both as Linux does it (rdma_calc_flow_label, rdma_flow_label_to_udp_sport).
func source(flow, qpn, peer uint32) uint16 {
	if flow == 0 {
		v := uint64(qpn) * uint64(peer)
		v ^= v >> 20
		v ^= v >> 40
		flow = uint32(v) & 0xfffff
	}
	return firstSource | uint16(flow^flow>>14)&0x3fff
}

// maxPacket is the length of a packet of the largest path MTU. A port sends about as much in its turn
// (quantum).
const (
	maxPacket = 4096 + maxOverhead
	quantum   = maxPacket
)

// SetWeight implements transport.Port.
func (p *Port) SetWeight(weight int) { p.flow.Weight = weight }

// Hold implements transport.Port. Datagrams keep their order, so all of them wait.
func (p *Port) Hold(on bool) {
	p.datagrams.held = on
	if !on && p.waits() {
		p.enter()
	}
}

// ChargeCopy implements transport.Port.
func (p *Port) ChargeCopy(n int) { p.flow.Charge(n) }

// waits reports whether the port may have something to send.
func (p *Port) waits() bool {
	return !p.line.Empty() || p.datagrams.ready() || p.notices.owed > 0
}

// covered reports whether the function uses no more than what is guaranteed to it: it goes first.
func (p *Port) covered() bool {
	c := p.line.First()
	return c != nil && c.requester.credits != nil && c.requester.credits.Covered(credit.ReqPktTx)
}

// enter gives the port its place among the others.
func (p *Port) enter() {
	if !p.flow.Waits() && !p.closed {
		p.e.round.Enter(&p.flow, p, p.covered())
	}
}

// transmit makes the port's next packet in b and returns its length; 0: there is none now, of
// connections. Those and datagrams take turns.
func (p *Port) transmit(now transport.Time, b []byte) (n int) {
	if n = p.sendNotice(now, b); n > 0 {
		return n
	}
	if p.turn = !p.turn; p.datagrams.ready() && (p.turn || p.line.Empty()) {
		return p.datagrams.send(b)
	}
	for c := p.line.First(); c != nil; c = p.line.First() {
		if n = c.transmit(now, b); n > 0 {
			c.end.place.MoveBack()
			return n
		}
		c.end.place.Remove()
	}
	return 0
}

// join lets packets find a connection that its queue pair took. One that the queue pair had before
// has ended.
func (p *Port) join(c *Conn) {
	if old := p.conns[c.end.terms.QPN]; old != nil {
		old.leave()
	}
	c.end.way.SrcPort = source(c.end.way.Flow, c.end.terms.QPN, c.end.terms.Peer)
	p.conns[c.end.terms.QPN] = c
}

func (p *Port) leave(c *Conn) {
	if p.conns[c.end.terms.QPN] == c {
		delete(p.conns, c.end.terms.QPN)
	}
}

// Close implements transport.Port.
func (p *Port) Close() {
	if !p.closed {
		p.e.closed.Add(&p.stats)
		delete(p.e.ports, p)
	}
	p.closed = true
	p.datagrams.drop()
	p.notices = notices{}
	for _, c := range p.conns {
		c.letGo()
		c.leave()
	}
	p.flow.Leave()
}

// Serve has the port carry the datagrams of a function's queue pairs.
func (p *Port) Serve(of *verbs.Objects) { p.datagrams.of = of }

// To implements verbs.Destinations. It returns nil for an address of another family than the
// port's; datagrams to all others are ordered.
func (p *Port) To(a *verbs.Address, _ bool) verbs.Destination {
	peer := Address(a.GID)
	if peer.Is4() != p.Addr.Is4() {
		return nil
	}
	return &Destination{port: p, way: p.way(transport.Way{Peer: peer, Class: a.TrafficClass, Hops: a.HopLimit, FlowLabel: a.FlowLabel})}
}

// Conns implements transport.Port.
func (p *Port) Conns() (list []transport.PortConn) {
	for _, qpn := range slices.Sorted(maps.Keys(p.conns)) {
		c := p.conns[qpn]
		i := transport.PortConn{
			QPN: qpn, Peer: c.end.terms.Peer, At: c.end.way.Dst, State: "ESTABLISHED", MTU: c.end.segment, Again: c.requester.repeats, Window: c.requester.traffic.Window,
			Trip: c.requester.traffic.Trip, Opened: c.opened,
		}
		switch {
		case c.end.user == nil:
			i.State = "PARTING"
		case c.requester.dead || c.responder.refused != 0:
			i.State = "FAILED"
		}
		list = append(list, i)
	}
	return list
}

// Stats implements transport.Port.
func (p *Port) Stats() transport.PortStats { return p.stats }

// Receive takes an IP packet for the port, UDP 4791. An invalid packet is silently dropped (Annex
// A17, CA17-24) and counted.
func (p *Port) Receive(now transport.Time, packet []byte) {
	p.receive(now, packet, &recipients{most: math.MaxInt})
}

// Share implements transport.Port.
func (p *Port) Share(now transport.Time, packet []byte, first, most int) (n int, more bool) {
	to := recipients{first: first, most: most}
	p.receive(now, packet, &to)
	return to.n, to.more
}

// recipients says which queue pairs of a group may get a packet, and counts those that did.
type recipients struct {
	first, most int
	n           int
	more        bool
}

func (p *Port) receive(now transport.Time, packet []byte, to *recipients) {
	h := &p.e.in
	way, part, err := wire.ParseHeaders(packet)
	n := 0
	if err == nil {
		n, err = h.Parse(part)
	}
	if err == nil && !p.e.tape.Bool(tape.Sound, p.e.tape.Plays() || wire.Check(packet) == nil) { // a tape may not have what they cover
		err = wire.ErrICRC
	}
	data, ok := h.BTH.Data(part, n)
	if err != nil || !ok {
		p.stats.Wrong++
		return
	}
	marked := way.Class&wire.ECNMask == wire.ECNCE
	if marked && to.first == 0 {
		p.stats.Marked++
	}
	if h.BTH.PKey&0x7fff != wire.DefaultPKey&0x7fff { // IBA §9.6.1.1, of every service
		p.stats.Strange++
		return
	}
	if h.BTH.Opcode&ib.ServiceMask == ib.UD && (way.Dst == p.Addr || way.Dst.IsMulticast() && h.BTH.DestQP == abi.GroupQPN) {
		if to.first == 0 {
			p.stats.Received++
		}
		if p.datagrams.take(now, way.Dst, h, packet, data, to) && marked && to.first == 0 {
			back := p.way(transport.Way{Peer: way.Src, Class: way.Class})
			back.SrcPort = source(0, h.BTH.DestQP, h.Datagram.SourceQP)
			p.notices.owe(now, back, h)
			p.enter()
		}
		return
	}
	c := p.conns[h.BTH.DestQP]
	if c == nil || way.Src != c.end.way.Dst || way.Dst != c.end.way.Src || !c.speaks(h.BTH.Opcode) {
		p.stats.Strange++
		return
	}
	p.stats.Received++
	c.receive(now, h, data, marked)
}

// NoteSent implements transport.Port.
func (p *Port) NoteSent(sealed bool) {
	if p.datagrams.of == nil || p.datagrams.of.Account.Trace == nil {
		return
	}
	t := p.datagrams.of.Account.Trace
	if sealed {
		t.SealedPacket()
	} else {
		t.Unfilled()
	}
	if p.behind.Kind != 0 {
		t.Add(&p.behind)
		p.behind = trace.Event{}
	}
}

package roce

import (
	"net/netip"

	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
	falcon "github.com/falcon-vnic/vnic/rdma/wire"
)

// A datagram is copied when it is taken, and its send is complete then: memory of the guest is looked
// at once. What waits for the network is bounded; who sends more waits.

// maxDatagrams is how many of a function wait for the network.
const maxDatagrams = 128

// datagram is one that waits.
type datagram struct {
	transport.Datagram
	to   *Destination
	data [verbs.MaxDatagram]byte
}

// Datagrams are those of a port's function.
type datagrams struct {
	of      *verbs.Objects
	waiting ring.Queue[*datagram]
	blocked []blocked // senders that wait for a place
	psn     wire.PSN
	came    verbs.Arrival
	arrived transport.Datagram
	grh     [verbs.GRHSize]byte
}

// blocked is who waits for a place for a datagram to a destination.
type blocked struct {
	sender verbs.Waiter
	to     *Destination
}

// Serve has the port carry the datagrams of a function's queue pairs.
func (p *Port) Serve(of *verbs.Objects) { p.datagrams.of = of }

// Destination is where datagrams of a port go: what carries those of an address handle.
type Destination struct {
	port *Port
	way  wire.Way
}

var _ verbs.Carrier = (*Destination)(nil)

// To returns what carries datagrams to an address; nil if that is of another family than the port's.
func (p *Port) To(a *verbs.Address) *Destination {
	peer := Address(a.GID)
	if peer.Is4() != p.Addr.Is4() {
		return nil
	}
	d := &Destination{port: p, way: p.way(Way{Peer: peer, Class: a.TrafficClass, Hops: a.HopLimit, FlowLabel: a.FlowLabel})}
	d.way.SrcPort = source(a.FlowLabel, 0, 0)
	return d
}

// Address is the IP address that a GID stands for (Annex A17.4.1.1).
func Address(gid [16]byte) netip.Addr { return netip.AddrFrom16(gid).Unmap() }

// Want implements verbs.Carrier: there is nothing to be made.
func (d *Destination) Want(transport.Time) {}

// Leave implements verbs.Carrier.
func (d *Destination) Leave(transport.Time) {}

// Send implements verbs.Carrier.
func (d *Destination) Send(_ transport.Time, x *verbs.Datagram) verbs.Sent {
	p := d.port
	switch {
	case p.closed || x.Length > p.MTU-overhead(&d.way):
		return verbs.Lost
	case p.waiting.Len() == maxDatagrams:
		if x.From.Wait(d) {
			p.blocked = append(p.blocked, blocked{x.From, d})
		}
		return verbs.Full
	}
	g := p.e.datagrams.Get()
	if x.Inline != nil {
		copy(g.data[:], x.Inline)
	} else if x.SGEs.Gather(verbs.Cursor{}, g.data[:x.Length]) != nil {
		p.e.datagrams.Put(g)
		return verbs.Unreadable
	}
	g.Datagram, g.to = x.Datagram, d
	*p.waiting.Push() = g
	p.e.talking.PushBack(&p.talks, p)
	return verbs.Taken
}

// sendDatagram makes the packet of the next datagram in b and returns its length.
func (p *Port) sendDatagram(b []byte) int {
	at := p.waiting.Pop()
	g := *at
	*at = nil
	if p.waiting.Len() == 0 {
		p.talks.Remove()
	}
	op := wire.UD | wire.SendOnly
	if g.HasImm {
		op = wire.UD | wire.SendOnlyImm
	}
	h := &p.e.out
	*h = wire.Headers{
		BTH: wire.BTH{
			Opcode: op, Solicited: g.Solicited, Migrated: true, Pad: uint8(falcon.PadLen(g.Length)), PKey: wire.DefaultPKey, DestQP: g.To, PSN: p.psn,
		},
		Datagram: wire.DETH{QKey: g.QKey, SourceQP: g.From},
	}
	h.Imm.Data = g.Imm
	p.psn = p.psn.Add(1)
	ip := g.to.way.HeaderLen()
	n := ip + len(h.Append(b[ip:ip]))
	n += copy(b[n:], g.data[:g.Length])
	end := n + falcon.PadLen(g.Length) + wire.ICRCLen
	clear(b[n:end])
	g.to.way.Put(b[:end])
	p.of.Account.PushesTx++
	p.of.Account.BytesTx += uint64(g.Length)
	g.to = nil
	p.e.datagrams.Put(g)
	p.resume()
	return end
}

// resume wakes who waited for a place.
func (p *Port) resume() {
	for _, b := range p.blocked {
		b.sender.Resume(b.to)
	}
	clear(p.blocked)
	p.blocked = p.blocked[:0]
}

// drop forgets the datagrams that wait.
func (p *Port) drop() {
	for p.waiting.Len() > 0 {
		at := p.waiting.Pop()
		(*at).to = nil
		p.e.datagrams.Put(*at)
		*at = nil
	}
	p.talks.Remove()
	p.resume()
}

// takeDatagram takes one that came in packet. Which queue pair it is for, and whether that wants it,
// the function's objects know. Before its data they put the IP header (Annex A17.4.5.1).
func (p *Port) takeDatagram(now transport.Time, h *wire.Headers, packet, data []byte) {
	if p.of == nil {
		return
	}
	clear(p.grh[:])
	sl := abi.SLRoCEIPv6
	if p.Addr.Is4() {
		sl = abi.SLRoCEIPv4
		copy(p.grh[20:], packet[:20])
	} else {
		copy(p.grh[:], packet)
	}
	p.arrived = transport.Datagram{
		To: h.BTH.DestQP, From: h.Datagram.SourceQP, QKey: h.Datagram.QKey, Imm: h.Imm.Data,
		HasImm: h.BTH.Opcode == wire.UD|wire.SendOnlyImm, Solicited: h.BTH.Solicited, Length: len(data),
	}
	p.came = verbs.Arrival{Datagram: &p.arrived, Data: data, GRH: &p.grh, SL: uint8(sl), Conn: strangers{}, ID: uint32(h.BTH.PSN)}
	p.of.Deliver(now, &p.came)
	p.of.Settle(now)
}

// strangers stands, in traces, for the connection that a datagram has none of here.
type strangers struct{ transport.DatagramConn }

// ID implements transport.DatagramConn.
func (strangers) ID() uint32 { return 0 }

// NoteDelivered implements transport.DatagramConn.
func (strangers) NoteDelivered(*transport.Datagram, uint32) {}

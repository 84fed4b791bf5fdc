package roce

import (
	"net/netip"

	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// A datagram is copied when it is accepted, and then its send is complete: guest memory is read
// only once. The number of waiting datagrams is limited; senders of more must wait.

// maxDatagrams limits the datagrams of a function that wait for the network.
const maxDatagrams = 128

// datagram is a datagram that waits to be sent.
type datagram struct {
	transport.Datagram
	to   *Destination
	data [verbs.MaxDatagram]byte
}

// datagrams holds the datagrams of a port's function.
type datagrams struct {
	port    *Port
	of      *verbs.Objects // nil: the function has no verbs objects
	waiting ring.Queue[*datagram]
	blocked []blocked // senders that wait for room
	held    bool      // nothing is sent while a datagram to a group is still being delivered
	psn     wire.PSN
	number  uint32 // of the last datagram that arrived, for traces
	came    verbs.Arrival
	arrived transport.Datagram
	grh     [verbs.GRHSize]byte
}

// blocked is a sender that waits for room for a datagram to a destination.
type blocked struct {
	sender verbs.Waiter
	to     *Destination
}

// Destination is a destination of a port's datagrams. An address handle sends to it.
type Destination struct {
	port *Port
	way  wire.Way
}

var _ verbs.Destination = (*Destination)(nil)

// Address returns the IP address that a GID contains (Annex A17.4.1.1).
func Address(gid [16]byte) netip.Addr { return netip.AddrFrom16(gid).Unmap() }

// Want implements verbs.Destination. A destination needs no connection.
func (d *Destination) Want(transport.Time) {}

// Leave implements verbs.Destination.
func (d *Destination) Leave(transport.Time) {}

// Send implements verbs.Destination.
func (d *Destination) Send(_ transport.Time, x *verbs.Datagram) verbs.Sent {
	p := d.port
	in := &p.datagrams
	switch {
	case p.closed || x.Length > p.MTU-overhead(&d.way):
		return verbs.Lost
	case in.waiting.Len() == maxDatagrams:
		if x.From.Wait(d) {
			in.blocked = append(in.blocked, blocked{x.From, d})
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
	in.of.Account.NoteDatagram(trace.Issued, &g.Datagram, traced, trace.Owed)
	*in.waiting.Push() = g
	p.enter()
	return verbs.Taken
}

// send writes the packet of the next datagram into b and returns its length.
func (s *datagrams) send(b []byte) int {
	at := s.waiting.Pop()
	g := *at
	*at = nil
	op := ib.UD | ib.SendOnly
	if g.HasImm {
		op = ib.UD | ib.SendOnlyImm
	}
	h := &s.port.e.out
	*h = wire.Headers{
		BTH: wire.BTH{
			Opcode: op, Solicited: g.Solicited, Migrated: true, Pad: uint8(ib.PadLen(g.Length)), PKey: wire.DefaultPKey, DestQP: g.To, PSN: s.psn,
		},
		Extended: ib.Extended{Datagram: ib.DETH{QKey: g.QKey, SourceQP: g.From}},
	}
	h.Imm.Data = g.Imm
	s.psn = s.psn.Add(1)
	ip := g.to.way.HeaderLen()
	n := ip + len(h.Append(b[ip:ip]))
	n += copy(b[n:], g.data[:g.Length])
	end := n + ib.PadLen(g.Length) + wire.ICRCLen
	clear(b[n:end])
	way := g.to.way
	way.SrcPort = source(way.Flow, g.From, g.To)
	way.Put(b[:end])
	s.of.Account.PushesTx++
	s.of.Account.BytesTx += uint64(g.Length)
	s.note(&g.Datagram)
	g.to = nil
	s.port.e.datagrams.Put(g)
	s.resume()
	return end
}

// ready reports whether a datagram may be sent.
func (s *datagrams) ready() bool { return s.waiting.Len() > 0 && !s.held }

// resume wakes the senders that waited for room.
func (s *datagrams) resume() {
	for _, b := range s.blocked {
		b.sender.Resume(b.to)
	}
	clear(s.blocked)
	s.blocked = s.blocked[:0]
}

// drop discards the waiting datagrams.
func (s *datagrams) drop() {
	for s.waiting.Len() > 0 {
		at := s.waiting.Pop()
		(*at).to = nil
		s.port.e.datagrams.Put(*at)
		*at = nil
	}
	s.resume()
}

// take delivers a datagram that arrived in packet for an address. The function's objects find the
// queue pair and decide whether it accepts the datagram. The IP header is put before the data
// (Annex A17.4.5.2). It reports whether the queue pair, or one in the group, exists.
func (s *datagrams) take(now transport.Time, to netip.Addr, h *wire.Headers, packet, data []byte, of *recipients) (there bool) {
	if s.of == nil {
		return false
	}
	clear(s.grh[:])
	sl := abi.SLRoCEIPv6
	if s.port.Addr.Is4() {
		sl = abi.SLRoCEIPv4
		copy(s.grh[20:], packet[:20])
	} else {
		copy(s.grh[:], packet)
	}
	s.arrived = transport.Datagram{
		To: h.BTH.DestQP, From: h.Datagram.SourceQP, QKey: h.Datagram.QKey, Imm: h.Imm.Data,
		HasImm: h.BTH.Opcode == ib.UD|ib.SendOnlyImm, Solicited: h.BTH.Solicited, Length: len(data),
	}
	s.number++
	if t := s.of.Account.Trace; t != nil && t.Wants(h.BTH.DestQP) {
		t.Arrived(t.Now(), &trace.Event{Index: s.number})
	}
	s.came = verbs.Arrival{Datagram: &s.arrived, Data: data, GRH: &s.grh, SL: uint8(sl), ID: s.number, Opcode: uint8(h.BTH.Opcode), Wire: traced}
	if h.BTH.DestQP == abi.GroupQPN {
		there = s.of.Joined(to.As16())
		of.n, of.more = s.of.DeliverGroup(now, to.As16(), &s.came, of.first, of.most)
	} else {
		there = s.of.QP(h.BTH.DestQP) != nil
		s.of.Deliver(now, &s.came)
	}
	s.of.Settle(now)
	return there
}

// note records that a datagram is sent. Nobody acknowledges it.
func (s *datagrams) note(d *transport.Datagram) {
	if t := s.of.Account.Trace; t != nil && t.Wants(d.From) {
		s.of.Account.NoteDatagram(trace.Scheduled, d, traced, 0)
		s.port.behind = trace.Event{Kind: trace.Gone, Work: d.From, Index: d.Work, Extra: d.Serial}
	}
}

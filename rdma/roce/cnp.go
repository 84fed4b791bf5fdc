package roce

import (
	"net/netip"

	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Who sent a packet that the network marked is told so by a congestion notification packet (Annex
// A17.9.3, CA17-44). One stands for all within a while, of a queue pair.

// cnpEvery is the least time between two notifications to one queue pair.
const cnpEvery transport.Time = 50e3

// marks are those that a connection's packets came with.
type marks struct {
	seen bool // since the last notification
	pkey uint16
	told transport.Time
}

// see notes a marked packet.
func (m *marks) see(h *wire.Headers) { m.seen, m.pkey = true, h.BTH.PKey }

// sendCNP tells the peer of marks.
func (s *responder) sendCNP(now transport.Time, b []byte) int {
	m := &s.marks
	if !m.seen {
		return 0
	}
	m.seen = false
	if now < m.told+cnpEvery && m.told != 0 {
		return 0
	}
	m.told = now
	return s.port.putCNP(b, &s.way, s.terms.Peer, m.pkey)
}

// putCNP makes a notification in b and returns its length.
func (p *Port) putCNP(b []byte, way *wire.Way, qpn uint32, pkey uint16) int {
	p.stats.CNPsSent++
	h := &p.e.out
	*h = wire.Headers{BTH: wire.BTH{Opcode: wire.CNP, BECN: true, PKey: pkey, DestQP: qpn}}
	ip := way.HeaderLen()
	h.Append(b[ip:ip])
	n := ip + wire.BTHLen + wire.CNPReserved + wire.ICRCLen
	clear(b[ip+wire.BTHLen : n])
	way.Put(b[:n])
	return n
}

// notices are the notifications to senders of datagrams, which have no connection: to those that
// were marked last.
type notices struct {
	last [16]notice
	next int // place in last for another sender
	owed int
}

// notice is what a sender of datagrams is told.
type notice struct {
	way  wire.Way
	qpn  uint32
	pkey uint16
	owed bool
	told transport.Time // when it was told before; 0: never
}

// owe notes that a datagram came with a mark. Of more senders than are remembered some are not
// told.
func (n *notices) owe(now transport.Time, back wire.Way, h *wire.Headers) {
	x := n.of(back.Dst, h.Datagram.SourceQP)
	if x.told != 0 && now < x.told+cnpEvery {
		return
	}
	if !x.owed {
		x.owed = true
		n.owed++
	}
	x.way, x.pkey = back, h.BTH.PKey
}

// of finds the place of a sender, or makes one.
func (n *notices) of(addr netip.Addr, qpn uint32) *notice {
	for i := range n.last {
		if x := &n.last[i]; x.qpn == qpn && x.way.Dst == addr {
			return x
		}
	}
	x := &n.last[n.next]
	n.next = (n.next + 1) % len(n.last)
	if x.owed {
		n.owed--
	}
	*x = notice{way: wire.Way{Dst: addr}, qpn: qpn}
	return x
}

// sendNotice makes the next notification to a sender of datagrams in b and returns its length; 0:
// none is owed.
func (p *Port) sendNotice(now transport.Time, b []byte) int {
	for i := range p.notices.last {
		if x := &p.notices.last[i]; x.owed {
			x.owed, x.told = false, now
			p.notices.owed--
			return p.putCNP(b, &x.way, x.qpn, x.pkey)
		}
	}
	return 0
}

package roce

import (
	"net/netip"

	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// The sender of a packet that the network marked is told so by a congestion notification packet
// (Annex A17.9.3, CA17-44). For one queue pair, one notification covers all marks within a while.

// cnpEvery is the minimum time between two notifications to one queue pair.
const cnpEvery transport.Time = 50e3

// marks records the congestion marks on a connection's packets.
type marks struct {
	seen bool // a mark was seen since the last notification
	pkey uint16
	told transport.Time
}

// see records a marked packet.
func (m *marks) see(h *wire.Headers) { m.seen, m.pkey = true, h.BTH.PKey }

// sendCNP tells the peer about marked packets, if a notification is due.
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
	return s.end.port.putCNP(b, &s.end.way, s.end.terms.Peer, m.pkey)
}

// putCNP writes a notification into b and returns its length.
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

// notices holds the notifications to senders of datagrams, which have no connection. It remembers
// the senders whose packets were marked last.
type notices struct {
	last [16]notice
	next int // index in last for another sender
	owed int
}

// notice is the notification to one sender of datagrams.
type notice struct {
	way  wire.Way
	qpn  uint32
	pkey uint16
	owed bool
	told transport.Time // when it was last told; 0: never
}

// owe records that a datagram had a mark. If there are more senders than entries, some are not
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

// of returns the entry of a sender, and makes one if there is none.
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

// sendNotice writes the next notification to a sender of datagrams into b and returns its length, 0
// if none is due.
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

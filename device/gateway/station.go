package gateway

import (
	"encoding/binary"
	"net/netip"
)

// station is the gateway as the guests of its ports see it, the only other station on the link. It
// answers ARP, neighbour discovery, DHCP and echo, and sends the errors of a router.
type station struct {
	replies replies
	stats   *Stats // the gateway's
	knows   func(tenant uint32, gid [16]byte) bool
}

// control answers DHCP and neighbour discovery, the protocols between a port and its gateway. own
// is false for any other packet.
func (s *station) control(p *Endpoint, src MAC, b []byte, h *header, off Offload) (why Reason, own bool) {
	if h.fragment || off.GSO != GSONone {
		return none, false
	}
	l4 := b[h.l4:]
	switch {
	case !h.v6 && h.proto == protoUDP && len(l4) >= udpLen && binary.BigEndian.Uint16(l4[2:]) == dhcpServer && binary.BigEndian.Uint16(l4) == dhcpClient &&
		(h.dst == broadcastIP || h.dst == p.serverID()):
		return s.dhcp(p, src, l4[udpLen:]), true
	case h.v6 && h.proto == protoICMP6 && len(l4) > 0 && l4[0] >= ndRouterSolicit && l4[0] <= ndRedirect:
		return s.nd(p, src, b, h), true
	}
	return none, false
}

// reply returns the memory of a frame of n bytes to a station behind a port, with its Ethernet
// header written, or nil when the ring is full.
func (s *station) reply(p *Endpoint, to MAC, etherType uint16, n int) []byte {
	r := &s.replies
	if r.count == maxReplies {
		s.stats.drop(p, DropReplyFull)
		return nil
	}
	i := (r.head + r.count) % maxReplies
	r.lens[i], r.ports[i] = n, p
	r.count++
	f := r.frames[i][:n]
	p.ethernet(f, to, etherType)
	return f
}

// answersFor reports whether the gateway answers for a at the port: for its own addresses, and for
// others' addresses that have a route.
func (p *Endpoint) answersFor(a netip.Addr) bool {
	if a == p.serverID() || a == p.linkLocal() {
		return true
	}
	to, ok := p.network.find(a)
	return ok && !to.at(p)
}

package gateway

import (
	"encoding/binary"
	"net/netip"
)

// Several stations may be behind a port: a guest's macvlans, hosts of a bridge. Each address of a
// trusted endpoint may have its own MAC. The gateway learns it from packets that come from the
// address or from a network behind it. If no packet has come from an address, the gateway asks for
// its MAC (ARP, neighbour discovery). Until the answer arrives, frames go to the MAC that the
// endpoint used last: a guest with one interface has one MAC for all its addresses.

// stations holds the MACs of an endpoint's addresses, at most one entry for each address.
type stations []neighbour

type neighbour struct {
	addr  netip.Addr
	mac   MAC
	heard bool
	lost  uint32 // packets for it before it was heard
}

// of returns the entry of an address, and adds it if needed.
func (s *stations) of(a netip.Addr) *neighbour {
	for i := range *s {
		if n := &(*s)[i]; n.addr == a {
			return n
		}
	}
	*s = append(*s, neighbour{addr: a})
	return &(*s)[len(*s)-1]
}

// by returns the endpoint's address through which a is reached: a itself, or the next hop to it.
func (p *Endpoint) by(a netip.Addr) (own netip.Addr, ok bool) {
	if p.own(a) {
		return a, true
	}
	for i, routes := 0, p.network.config.Load().Routes; i < len(routes); i++ {
		if r := &routes[i]; r.Prefix.Contains(a) {
			return r.Via, p.own(r.Via)
		}
	}
	return own, false
}

// many reports whether the endpoint's addresses may have different MACs.
func (p *Endpoint) many() bool { return p.Trust || p.Spoof }

// heard records the MAC that an address was heard from. It ignores addresses that are not the
// endpoint's, since other stations may be on the guest's bridge.
func (p *Endpoint) heard(a netip.Addr, from MAC) {
	if !p.many() {
		return
	}
	if own, ok := p.by(a); ok {
		n := p.stations.of(own)
		n.mac, n.heard, n.lost = from, true, 0
		p.mac = from
	}
}

// macOf returns the MAC to which frames for an address go.
func (s *station) macOf(p *Endpoint, a netip.Addr) MAC {
	if !p.many() {
		return p.MAC
	}
	own, ok := p.by(a)
	if !ok {
		return p.mac
	}
	n := p.stations.of(own)
	if n.heard {
		return n.mac
	}
	if n.lost++; n.lost&(n.lost-1) == 0 { // the first, second, fourth, eighth…
		s.ask(p, own)
	}
	return p.mac
}

// ask sends a request for the MAC of an address to the stations behind a port. An ARP request has
// no sender address, so that it changes no cache (RFC 5227 §2.1.1); a solicitation comes from the
// gateway's address.
func (s *station) ask(p *Endpoint, a netip.Addr) {
	if a.Is4() {
		f := s.reply(p, everybody, typeARP, ethLen+arpLen)
		if f == nil {
			return
		}
		b := f[ethLen:]
		clear(b)
		copy(b, arpPrefix[:])
		binary.BigEndian.PutUint16(b[6:], arpRequest)
		copy(b[8:], p.Gateway[:])
		to := a.As4()
		copy(b[24:], to[:])
		s.stats.Reasons[CountAsked]++
		return
	}
	target := a.As16()
	group := [16]byte{0xff, 2, 11: 1, 12: 0xff, 13: target[13], 14: target[14], 15: target[15]} // RFC 4291 §2.7.1
	f := s.reply(p, MAC{0x33, 0x33, group[12], group[13], group[14], group[15]}, typeIPv6, ethLen+ipv6Len+ndLen+ndOptLen)
	if f == nil {
		return
	}
	b := f[ethLen:]
	putIPv6(b, protoICMP6, ndHops, p.linkLocal(), netip.AddrFrom16(group), ndLen+ndOptLen)
	m := b[ipv6Len:]
	clear(m)
	m[0] = ndSolicit
	copy(m[8:], target[:])
	m[ndLen], m[ndLen+1] = 1, 1 // source link-layer address
	copy(m[ndLen+2:], p.Gateway[:])
	finishICMP6(b)
	s.stats.Reasons[CountAsked]++
}

// told learns from an answer to ask: a solicited advertisement (RFC 4861 §7.2.5).
func (p *Endpoint) told(src MAC, m []byte) bool {
	target := netip.AddrFrom16([16]byte(m[8:24]))
	if m[4]&flagSolicited == 0 || !p.many() || !p.own(target) {
		return false
	}
	p.heard(target, src)
	return true
}

var everybody = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// destination returns the destination address of a frame's IP packet.
func destination(frame []byte) netip.Addr {
	b := frame[ethLen:]
	if b[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(b[16:20]))
	}
	return netip.AddrFrom16([16]byte(b[24:40]))
}

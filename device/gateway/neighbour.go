package gateway

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// Several hosts may be behind a port: a guest's macvlans, those of a bridge. Each address of a
// trusted endpoint may have its own MAC. The gateway learns it from packets that come from the
// address or from a network behind it. If no packet has come from an address, the gateway asks for
// its MAC (ARP, neighbour discovery). Until the answer arrives, frames go to the MAC that the
// endpoint used last: a guest with one interface has one MAC for all its addresses.

// neighbours holds the MACs of an endpoint's addresses, at most one entry for each address.
type neighbours []neighbour

type neighbour struct {
	addr  netip.Addr
	mac   MAC
	known bool
	lost  uint32 // packets for it before it was known
}

// of returns the entry of an address, and adds it if needed.
func (s *neighbours) of(a netip.Addr) *neighbour {
	for i := range *s {
		if n := &(*s)[i]; n.addr == a {
			return n
		}
	}
	*s = append(*s, neighbour{addr: a})
	return &(*s)[len(*s)-1]
}

// by returns the endpoint's address through which a is reached: a itself, or the next hop to it. It
// finds what network.find does: an address that somebody has is no other's by a route.
func (p *Endpoint) by(a netip.Addr) (own netip.Addr, ok bool) {
	if p.own(a) {
		return a, true
	}
	if _, others := p.network.addrs.Find(a); others {
		return own, false
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

// learn records the MAC that an address sends from. It ignores addresses that are not the
// endpoint's, since other hosts may be on the guest's bridge.
func (p *Endpoint) learn(a netip.Addr, from MAC) {
	if !p.many() {
		return
	}
	if own, ok := p.by(a); ok {
		n := p.neighbours.of(own)
		n.mac, n.known, n.lost = from, true, 0
		p.mac = from
	}
}

// macOf returns the MAC to which frames for an address go.
func (s *responder) macOf(p *Endpoint, a netip.Addr) MAC {
	if !p.many() {
		return p.MAC
	}
	own, ok := p.by(a)
	if !ok {
		return p.mac
	}
	n := p.neighbours.of(own)
	if n.known {
		return n.mac
	}
	if n.lost++; n.lost&(n.lost-1) == 0 { // the first, second, fourth, eighth…
		s.ask(p, own)
	}
	return p.mac
}

// ask sends a request for the MAC of an address to the hosts behind a port. An ARP request has
// no sender address, so that it changes no cache (RFC 5227 §2.1.1); a solicitation comes from the
// gateway's address.
func (s *responder) ask(p *Endpoint, a netip.Addr) {
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

// learnAnswer learns from an answer to ask: a solicited advertisement (RFC 4861 §7.2.5).
func (p *Endpoint) learnAnswer(src MAC, m []byte) bool {
	target := netip.AddrFrom16([16]byte(m[8:24]))
	if m[4]&flagSolicited == 0 || !p.many() || !p.own(target) {
		return false
	}
	p.learn(target, src)
	return true
}

var everybody = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

const (
	arpLen     = 28
	arpRequest = 1
	arpReply   = 2
)

var arpPrefix = [6]byte{0, 1, 8, 0, 6, 4} // Ethernet, IPv4, their address lengths

// arp answers requests for addresses that are reached through the gateway, with the gateway's MAC
// (RFC 826, RFC 1027). It does not answer for the port's own addresses: an answer to a probe for
// one (RFC 5227) would make the guest give the address up.
func (s *responder) arp(p *Endpoint, src MAC, b []byte) Reason {
	if len(b) < arpLen || !bytes.Equal(b[:6], arpPrefix[:]) || MAC(b[8:14]) != src {
		return DropARP
	}
	sender, target := netip.AddrFrom4([4]byte(b[14:18])), netip.AddrFrom4([4]byte(b[24:28]))
	p.learn(sender, src)
	switch op := binary.BigEndian.Uint16(b[6:]); {
	case op == arpReply && p.many() && p.own(sender): // an answer to responder.ask
		return none
	case op != arpRequest, sender == target, p.own(target):
		return DropARP // other replies, and the guest's announcements and probes of its own addresses
	case !sender.IsUnspecified() && !p.maySend(sender):
		return DropSourceIP
	case !p.answersFor(target):
		return DropARP
	}
	f := s.reply(p, src, typeARP, ethLen+arpLen)
	if f == nil {
		return none
	}
	a := f[ethLen:]
	copy(a, arpPrefix[:])
	binary.BigEndian.PutUint16(a[6:], arpReply)
	copy(a[8:], p.Gateway[:])
	copy(a[14:], b[24:28])
	copy(a[18:], src[:])
	copy(a[24:], b[14:18])
	s.stats.Reasons[CountARP]++
	return none
}

// Neighbour discovery (RFC 4861): to hosts, the gateway is a router that answers for all others.
const (
	ndRouterSolicit   = 133
	ndRouterAdvertise = 134
	ndSolicit         = 135
	ndAdvertise       = 136
	ndRedirect        = 137

	ndLen    = 24 // solicitation or advertisement without options
	ndOptLen = 8  // link-layer address option for Ethernet
	ndHops   = 255

	flagRouter    = 0x80
	flagSolicited = 0x40
	flagOverride  = 0x20

	optPrefix = 3
	optMTU    = 5
	optDNS    = 25

	onLinkFlag     = 0x80
	autonomousFlag = 0x40
	routerLifetime = 65535 // s, as RFC 8319 §4 allows

	advertiseAgain = 600_000_000_000 // ns, MaxRtrAdvInterval of RFC 4861 §6.2.1
)

var (
	allNodes    = netip.MustParseAddr("ff02::1")
	allNodesMAC = MAC{0x33, 0x33, 0, 0, 0, 1}
)

// linkLocal returns the gateway's own address at the port: EUI-64 of its MAC (RFC 4291 appendix A).
func (p *Endpoint) linkLocal() netip.Addr {
	return eui64(netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfe, 0x80}), 64), p.Gateway)
}

// eui64 returns the address that a host with this MAC makes for itself in a /64 network.
func eui64(n netip.Prefix, m MAC) netip.Addr {
	a := n.Addr().As16()
	copy(a[8:], []byte{m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]})
	return netip.AddrFrom16(a)
}

// nd answers solicitations of the port's guest. Messages that only routers may send are dropped.
func (s *responder) nd(p *Endpoint, src MAC, b []byte, h *header) Reason {
	m := b[h.l4:]
	if h.ttl != ndHops || len(m) < 8 || m[1] != 0 || !h.l4Valid(b) {
		return DropND
	}
	switch m[0] {
	case ndRouterSolicit:
		if p.Assign {
			s.routerAdvertisement(p)
		}
		return none
	case ndSolicit:
		return s.solicited(p, src, m, h)
	case ndAdvertise:
		if len(m) >= ndLen && p.learnAnswer(src, m) {
			return none
		}
	}
	return DropND // only the gateway sends redirects and router advertisements
}

func (s *responder) solicited(p *Endpoint, src MAC, m []byte, h *header) Reason {
	if len(m) < ndLen {
		return DropND
	}
	target := netip.AddrFrom16([16]byte(m[8:24]))
	probe, function := h.src.IsUnspecified(), s.function(p, target)
	p.learn(h.src, src)
	switch {
	case p.own(target), target.IsMulticast():
		return DropND // not answered: the guest may be checking its own address for duplicates
	case !probe && !h.src.IsLinkLocalUnicast() && !p.maySend(h.src):
		return DropSourceIP
	case !p.answersFor(target) && (probe || !function):
		return DropND
	}
	to, mac, flags := h.src, src, byte(flagSolicited|flagOverride)
	if probe { // tell all that the address is taken (RFC 4861 §7.2.4)
		to, mac, flags = allNodes, allNodesMAC, flagOverride
	}
	f := s.reply(p, mac, typeIPv6, ethLen+ipv6Len+ndLen+ndOptLen)
	if f == nil {
		return none
	}
	if r, ok := p.network.find(target); !function && (!ok || r.Kind == ToRouter) {
		flags |= flagRouter
	}
	a := f[ethLen:]
	putIPv6(a, protoICMP6, ndHops, target, to, ndLen+ndOptLen)
	n := a[ipv6Len:]
	clear(n)
	n[0], n[4] = ndAdvertise, flags
	copy(n[8:], m[8:24])
	n[ndLen], n[ndLen+1] = 2, 1 // target link-layer address
	copy(n[ndLen+2:], p.Gateway[:])
	finishICMP6(a)
	s.stats.Reasons[CountND]++
	return none
}

// function reports whether a is a link-local address that a function's driver added. Plain IP does
// not go there, but a kernel resolves the address before it uses RDMA. A guest that probes whether
// its own address is free gets no answer.
func (s *responder) function(p *Endpoint, a netip.Addr) bool {
	return a.IsLinkLocalUnicast() && s.knows != nil && s.knows(p.Tenant, a.As16())
}

// advertise sends a guest that sends something another advertisement when the last is old, or when
// what it told has changed: a host that has a router asks for none (RFC 4861 §6.3.7), and forgets it
// after its lifetime.
func (s *responder) advertise(now int64, p *Endpoint) {
	if !p.Assign {
		return
	}
	told, t := p.told, p.network.config.Load()
	if told == t && now < p.again {
		return
	}
	p.told, p.again = t, now+advertiseAgain
	if told != nil { // else it has just come, and asks
		s.routerAdvertisement(p)
	}
}

// routerAdvertisement tells the guest the subnets, the MTU and, if the tenant has routers, that the
// gateway is a router. It permits autoconfiguration only in a subnet where the resulting address is
// one that the function has already.
func (s *responder) routerAdvertisement(p *Endpoint) {
	t := p.network.config.Load()
	var options [replySize]byte
	o := options[:0]
	o = append(o, 1, 1) // source link-layer address
	o = append(o, p.Gateway[:]...)
	o = append(o, optMTU, 1, 0, 0)
	o = binary.BigEndian.AppendUint32(o, uint32(p.MTU))
	for _, n := range t.Subnets {
		if !n.Addr().Is6() || len(o)+32 > replySize-ethLen-ipv6Len-16-ndOptLen-maxDNS*16 {
			continue
		}
		flags := byte(onLinkFlag)
		if n.Bits() == 64 && p.own(eui64(n, p.MAC)) {
			flags |= autonomousFlag
		}
		o = append(o, optPrefix, 4, byte(n.Bits()), flags)
		o = append(o, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0) // valid and preferred for ever
		a := n.Addr().As16()
		o = append(o, a[:]...)
	}
	o = appendDNS6(o, t.DNS)
	f := s.reply(p, allNodesMAC, typeIPv6, ethLen+ipv6Len+16+len(o))
	if f == nil {
		return
	}
	b := f[ethLen:]
	putIPv6(b, protoICMP6, ndHops, p.linkLocal(), allNodes, 16+len(o))
	n := b[ipv6Len:]
	clear(n[:16])
	n[0], n[4] = ndRouterAdvertise, 64
	if _, ok := p.network.router(true); ok {
		binary.BigEndian.PutUint16(n[6:], routerLifetime)
	}
	copy(n[16:], o)
	finishICMP6(b)
	s.stats.Reasons[CountND]++
}

const maxDNS = 4

// appendDNS6 appends the recursive DNS server option (RFC 8106).
func appendDNS6(o []byte, servers []netip.Addr) []byte {
	at, n := len(o), 0
	o = append(o, optDNS, 1, 0, 0, 0xff, 0xff, 0xff, 0xff)
	for _, a := range servers {
		if a.Is6() && n < maxDNS {
			b := a.As16()
			o = append(o, b[:]...)
			n++
		}
	}
	if n == 0 {
		return o[:at]
	}
	o[at+1] = byte(1 + 2*n)
	return o
}

// finishICMP6 completes the checksum of a packet without extension headers.
func finishICMP6(b []byte) {
	h := header{v6: true, proto: protoICMP6, l4: ipv6Len, total: len(b)}
	finishL4(b, &h, 2)
}

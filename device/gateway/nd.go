package gateway

import (
	"encoding/binary"
	"net/netip"
)

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
	routerLifetime = 1800 // s
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
func (s *station) nd(p *Endpoint, src MAC, b []byte, h *header) Reason {
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
		if len(m) >= ndLen && p.told(src, m) {
			return none
		}
	}
	return DropND // only the gateway sends redirects and router advertisements
}

func (s *station) solicited(p *Endpoint, src MAC, m []byte, h *header) Reason {
	if len(m) < ndLen {
		return DropND
	}
	target := netip.AddrFrom16([16]byte(m[8:24]))
	probe, function := h.src.IsUnspecified(), s.function(p, target)
	p.heard(h.src, src)
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
func (s *station) function(p *Endpoint, a netip.Addr) bool {
	return a.IsLinkLocalUnicast() && s.knows != nil && s.knows(p.Tenant, a.As16())
}

// routerAdvertisement tells the guest the subnets, the MTU and, if the tenant has routers, that the
// gateway is a router. It permits autoconfiguration only in a subnet where the resulting address is
// one that the function has already.
func (s *station) routerAdvertisement(p *Endpoint) {
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

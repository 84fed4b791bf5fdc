package gateway

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// DHCP for IPv4 (RFC 2131) with one lease: the function's own address. There is no state: the
// configuration is the lease.
const (
	dhcpServer = 67
	dhcpClient = 68

	bootRequest = 1
	bootReply   = 2
	bootFixed   = 236 // bytes in front of the options' magic
	dhcpMinimum = bootFixed + 4

	dhcpDiscover = 1
	dhcpOffer    = 2
	dhcpRequest  = 3
	dhcpAck      = 5
	dhcpNak      = 6
	dhcpInform   = 8

	optMask          = 1
	optRouter        = 3
	optDomainServers = 6
	optInterfaceMTU  = 26
	optRequested     = 50
	optLease         = 51
	optMessage       = 53
	optServer        = 54
	optClientID      = 61
	optEnd           = 255

	leaseSeconds = 86400
)

var (
	dhcpMagic = []byte{99, 130, 83, 99}
	anyServer = netip.AddrFrom4([4]byte{169, 254, 1, 1}) // our server identifier if the tenant has no router
)

// serverID returns the gateway's address as a DHCP server.
func (p *Endpoint) serverID() netip.Addr {
	if a, ok := p.network.router(false); ok {
		return a
	}
	return anyServer
}

// address4 returns the address that the guest gets: the function's first IPv4 address.
func (p *Endpoint) address4() (netip.Addr, bool) {
	for _, a := range p.Addresses {
		if a.Is4() {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// request holds the parts of a client's message that are used.
type request struct {
	kind              uint8
	requested, server netip.Addr
	ciaddr            netip.Addr
	client            span // client identifier (option 61)
}

// span is a range of bytes in a message; it is empty if the part is missing.
type span struct{ from, to int }

// dhcp answers a client's message m.
func (s *responder) dhcp(p *Endpoint, src MAC, m []byte) Reason {
	addr, ok := p.address4()
	r, good := parseDHCP(m)
	if !p.Assign || !ok || !good || MAC(m[28:34]) != src {
		return DropDHCP
	}
	if r.server.IsValid() && r.server != p.serverID() {
		return DropDHCP // the client chose another server
	}
	wants := r.requested
	if !wants.IsValid() {
		wants = r.ciaddr
	}
	switch r.kind {
	case dhcpDiscover:
		s.lease(p, m, &r, dhcpOffer, addr)
	case dhcpRequest:
		if wants != addr {
			s.lease(p, m, &r, dhcpNak, addr)
			return none
		}
		s.lease(p, m, &r, dhcpAck, addr)
	case dhcpInform:
		s.lease(p, m, &r, dhcpAck, netip.AddrFrom4([4]byte{}))
	default:
		return DropDHCP // release, decline: the lease is the configuration
	}
	return none
}

// parseDHCP parses a client's message and checks the parts that are used.
func parseDHCP(m []byte) (r request, ok bool) {
	if len(m) < dhcpMinimum || m[0] != bootRequest || m[1] != 1 || m[2] != 6 || !bytes.Equal(m[bootFixed:dhcpMinimum], dhcpMagic) {
		return r, false
	}
	if c := netip.AddrFrom4([4]byte(m[12:16])); !c.IsUnspecified() {
		r.ciaddr = c
	}
	for o := m[dhcpMinimum:]; len(o) > 0 && o[0] != optEnd; {
		if o[0] == 0 {
			o = o[1:]
			continue
		}
		if len(o) < 2 || len(o) < 2+int(o[1]) {
			return r, false
		}
		v := o[2 : 2+int(o[1])]
		switch {
		case o[0] == optMessage && len(v) == 1:
			r.kind = v[0]
		case o[0] == optRequested && len(v) == 4:
			r.requested = netip.AddrFrom4([4]byte(v))
		case o[0] == optClientID && len(v) > 0:
			at := len(m) - len(o) + 2
			r.client = span{at, at + len(v)}
		case o[0] == optServer && len(v) == 4:
			r.server = netip.AddrFrom4([4]byte(v))
		}
		o = o[2+len(v):]
	}
	return r, r.kind != 0
}

// lease sends an answer to the message m that offers addr. It is broadcast, since the client may
// not have an address yet.
func (s *responder) lease(p *Endpoint, m []byte, r *request, kind uint8, addr netip.Addr) {
	const headers = ethLen + ipv4Len + udpLen
	t := p.network.config.Load()
	server := p.serverID()
	var buf [768]byte
	b := append(buf[:0], m[:bootFixed]...)
	clear(b[8:28]) // keep seconds and flags, clear the addresses
	copy(b[8:12], m[8:12])
	b[0], b[3] = bootReply, 0
	clear(b[44:bootFixed]) // server's name, file
	id := server.As4()
	if kind != dhcpNak {
		a := addr.As4()
		copy(b[16:], a[:])
		copy(b[20:], id[:])
	}
	copy(b[12:16], m[12:16])
	b = append(b, dhcpMagic...)
	b = append(b, optMessage, 1, kind, optServer, 4)
	b = append(b, id[:]...)
	if id := m[r.client.from:r.client.to]; len(id) > 0 { // RFC 6842 §3: in every answer
		b = append(b, optClientID, byte(len(id)))
		b = append(b, id...)
	}
	if kind != dhcpNak {
		b = p.appendLease(b, t, !addr.IsUnspecified())
	}
	b = append(b, optEnd)
	for len(b) < 300 { // minimum length of BOOTP (RFC 1542 §2.1)
		b = append(b, 0)
	}
	f := s.reply(p, everybody, typeIPv4, headers+len(b))
	if f == nil {
		return
	}
	ip := f[ethLen:]
	putIPv4(ip, protoUDP, server, broadcastIP, len(ip))
	u := ip[ipv4Len:]
	binary.BigEndian.PutUint16(u, dhcpServer)
	binary.BigEndian.PutUint16(u[2:], dhcpClient)
	binary.BigEndian.PutUint16(u[4:], uint16(len(u)))
	copy(u[udpLen:], b)
	h := header{proto: protoUDP, l4: ipv4Len, total: len(ip)}
	finishL4(ip, &h, udpCheckAt)
	s.stats.Reasons[CountDHCP]++
}

// appendLease appends the options that describe the network.
func (p *Endpoint) appendLease(b []byte, t *TenantConfig, lease bool) []byte {
	addr, _ := p.address4()
	if lease {
		b = append(b, optLease, 4)
		b = binary.BigEndian.AppendUint32(b, leaseSeconds)
	}
	for _, n := range t.Subnets {
		if n.Contains(addr) {
			b = append(b, optMask, 4)
			b = binary.BigEndian.AppendUint32(b, ^uint32(0)<<(32-n.Bits()))
			break
		}
	}
	b = append(b, optInterfaceMTU, 2)
	b = binary.BigEndian.AppendUint16(b, uint16(min(p.MTU, 0xffff)))
	b = appendAddrs(b, optRouter, t.Routers)
	return appendAddrs(b, optDomainServers, t.DNS)
}

// appendAddrs appends an option with the list's IPv4 addresses, at most maxDNS; without any it
// appends nothing.
func appendAddrs(b []byte, option uint8, list []netip.Addr) []byte {
	at := len(b)
	b = append(b, option, 0)
	for _, a := range list {
		if a.Is4() && b[at+1] < 4*maxDNS {
			v := a.As4()
			b = append(b, v[:]...)
			b[at+1] += 4
		}
	}
	if b[at+1] == 0 {
		return b[:at]
	}
	return b
}

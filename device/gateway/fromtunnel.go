package gateway

import "bytes"

// cache remembers the last packet's way from a tunnel, so that the next one of a flow needs no
// look-up.
type cache struct {
	from  *Tunnel
	v6    bool
	addrs [32]byte
	port  *Endpoint
}

// FromTunnel takes a packet that a peer sealed and brings it before the port it is for. frame holds
// the packet behind room for an Ethernet header. outer is the ECN field of the packet around it.
func (g *Gateway) FromTunnel(from *Tunnel, frame []byte, outer uint8) {
	defer g.survive(nil, g.mark(), frame)
	g.stats.TunnelIn++
	g.stats.TunnelInBytes += uint64(len(frame) - ethLen)
	p, why := g.fromTunnel(from, frame, outer)
	if why != none {
		g.drop(p, why)
	}
}

func (g *Gateway) fromTunnel(from *Tunnel, frame []byte, outer uint8) (*Endpoint, Reason) {
	b := frame[ethLen:]
	h, why := parseIP(b)
	switch {
	case why != none:
		return nil, why
	case h.total != len(b): // nothing may hide behind the packet
		return nil, DropTruncated
	case h.proto == protoFalcon:
		return nil, DropFalcon
	}
	p, why := g.steer(from, b, &h)
	if why != none {
		return p, why
	}
	if h.total > p.MTU {
		return p, DropPortTooBig
	}
	switch ecn, ok := decapsulate(h.ecn, outer); {
	case !ok:
		return p, DropECN
	case ecn != h.ecn:
		h.setECN(b, ecn)
	}
	if h.fragment {
		g.stats.Reasons[CountFragments]++
	}
	if h.nested(b) {
		g.stats.Reasons[CountNested]++
	}
	if p.takes(b, &h) {
		return p, none
	}
	etherType := uint16(typeIPv4)
	if h.v6 {
		etherType = typeIPv6
	}
	p.ethernet(frame, etherType)
	joined, ok := g.out.join(p, frame, &h)
	if !ok {
		return p, DropPortFull
	}
	if joined {
		g.stats.Coalesced++
	}
	return p, none
}

// steer finds the port of a packet: by the tenant of the tunnel, which the key stands for, and the
// address inside. The sender must be a function of that peer.
func (g *Gateway) steer(from *Tunnel, b []byte, h *header) (*Endpoint, Reason) {
	addrs := b[12:20]
	if h.v6 {
		addrs = b[8:40]
	}
	c := &g.last
	if c.port != nil && c.from == from && c.v6 == h.v6 && bytes.Equal(c.addrs[:len(addrs)], addrs) {
		return c.port, none
	}
	t := g.tenants[from.Tenant]
	if t == nil {
		return nil, DropNoPort
	}
	if src, ok := t.find(h.src); !ok || src.tunnel != from {
		return nil, DropWrongSource
	}
	to, ok := t.find(h.dst)
	if !ok || to.port == nil {
		return nil, DropNoPort
	}
	c.from, c.v6, c.port = from, h.v6, to.port
	copy(c.addrs[:], addrs)
	return to.port, none
}

// decapsulate is RFC 6040 §4.2: what the way has marked is told to the receiver, unless it could
// not understand it.
func decapsulate(inner, outer uint8) (ecn uint8, ok bool) {
	switch {
	case outer == ecnCE:
		return ecnCE, inner != 0
	case outer == ecnECT1 && inner == ecnECT0:
		return ecnECT1, true
	}
	return inner, true
}

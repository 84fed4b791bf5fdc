package gateway

import (
	"bytes"
	"encoding/binary"
)

// FromTunnel takes a packet that a peer sealed and queues it for its port. frame holds room for an
// Ethernet header, then the packet. outer is the ECN field of the outer header.
func (g *Gateway) FromTunnel(from *Tunnel, frame []byte, outer uint8) {
	defer g.survive(nil, g.mark(), frame)
	g.stats.TunnelIn++
	g.stats.TunnelInBytes += uint64(len(frame) - ethLen)
	p, why := g.fromTunnel(from, frame, outer)
	if why != none {
		g.stats.drop(p, why)
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
	case h.dst.IsMulticast():
		return nil, g.groupFromTunnel(from, frame, &h, outer)
	}
	c, why := g.steer(from, b, &h)
	if why != none {
		return nil, why
	}
	split := h.total > c.to.MTU
	if split && !(&Offload{}).splits(b, &h, c.to.MTU) {
		return c.port, DropPortTooBig
	}
	switch ecn, ok := decapsulate(h.ecn(), outer); {
	case !ok:
		return c.port, DropECN
	case ecn != h.ecn():
		h.setECN(b, ecn)
	}
	if h.fragment {
		g.stats.Reasons[CountFragments]++
	}
	if h.nested(b) {
		g.stats.Reasons[CountNested]++
	}
	if split {
		g.stats.Reasons[CountFragmented]++
		return c.port, g.splitTo(from.flow(), &c.to, c.port, b, h, Offload{})
	}
	if c.port == nil {
		binary.BigEndian.PutUint16(frame[12:], h.etherType())
		return nil, g.handOver(from.flow(), &c.to, frame, Offload{})
	}
	if c.port.takes(b, &h, Offload{}) {
		return c.port, none
	}
	return c.port, g.out.joinOrDeliver(c.port, frame, &h)
}

// steer finds where a packet goes: by the tunnel's tenant, which the key determines, and the inner
// destination address. The sender must be a function of that peer.
func (g *Gateway) steer(from *Tunnel, b []byte, h *header) (*cache, Reason) {
	addrs := b[12:20]
	if h.v6 {
		addrs = b[8:40]
	}
	c, now := &g.last, g.epoch()
	if c.from == from && c.epoch == now && c.v6 == h.v6 && bytes.Equal(c.addrs[:len(addrs)], addrs) {
		return c, none
	}
	n := g.routes.network(from.Tenant)
	if src, ok := n.find(h.src); !ok || src.Kind != ToPeer || src.Peer != from.Peer {
		return nil, DropWrongSource
	}
	to, ok := n.find(h.dst)
	if !ok || to.Kind != ToPort {
		return nil, DropNoPort
	}
	*c = cache{epoch: now, from: from, v6: h.v6, to: to, port: g.here(&to)}
	copy(c.addrs[:], addrs)
	return c, none
}

// decapsulate combines inner and outer ECN (RFC 6040 §4.2): a congestion mark of the path is passed
// to the receiver. If the inner header is not ECN-capable, ok is false for a CE mark. The sender's
// DSCP is kept: nothing authenticates that of the outer header (RFC 2983 §4.1, RFC 4301 §5.1.2.1).
func decapsulate(inner, outer uint8) (ecn uint8, ok bool) {
	switch {
	case outer == ecnCE:
		return ecnCE, inner != 0
	case outer == ecnECT1 && inner == ecnECT0:
		return ecnECT1, true
	}
	return inner, true
}

package gateway

import (
	"encoding/binary"
	"net/netip"
)

// Packets of the functions themselves, by RDMA over UDP or TCP: those that a function sends are
// carried like plain IP, and those that it claims go to the function and not to its port.
//
//	function ─▶ FromFunction ─┬─▶ tunnel: as a frame of its port
//	                          ├─▶ another endpoint: its port, or its function
//	                          └─▶ itself
//	tunnel, ports ─▶ deliver ─▶ function

// Claim names packets that belong to a function itself, and not to the guest behind its port.
type Claim struct {
	Protocol uint8    // UDP or TCP
	Port     uint16   // destination
	Ports    *PortSet // instead of Port, at the function's address: its own ends of connections
}

// PortSet is a set of ports, which changes with the connections of its function.
type PortSet [1 << 16 / 64]uint64

// Has reports whether a port is in the set. Add and Remove change it.
func (s *PortSet) Has(port uint16) bool { return s[port/64]>>(port%64)&1 != 0 }
func (s *PortSet) Add(port uint16)      { s[port/64] |= 1 << (port % 64) }
func (s *PortSet) Remove(port uint16)   { s[port/64] &^= 1 << (port % 64) }

func (c *Claim) has(port uint16) bool {
	if c.Ports != nil {
		return c.Ports.Has(port)
	}
	return port == c.Port
}

// SetFunction sets the callback that takes the packets of a claim, for the function's own address
// and for groups; nil: the function takes none. Several queue pairs may receive a packet to a group.
// take delivers it to at most most of them, starting with number first, and returns how many received
// it and whether there are more.
func (p *Endpoint) SetFunction(c Claim, take func(packet []byte, first, most int) (n int, more bool)) {
	p.claim, p.take = c, take
}

// deliver delivers a packet to the endpoint's function if it is for the function, which may use
// packet until deliver returns. A guest that speaks the protocol itself through its port gets the
// packets for the function's address only while no driver has the function (SetFunction), and those
// for the port's other addresses always.
func (p *Endpoint) deliver(packet []byte, h *header, off Offload) bool {
	if !p.wants(packet, h) {
		return false
	}
	packet = packet[:h.total]
	off.complete(packet, h.proto)
	p.take(packet, 0, 1)
	return true
}

// wants reports whether a packet is for the endpoint's function. packet must contain all headers.
func (p *Endpoint) wants(packet []byte, h *header) bool {
	return p.take != nil && h.wholeTo(packet, &p.claim) && (h.dst.IsMulticast() || p.speaksFrom(h.dst))
}

// speaksFrom reports whether the endpoint's function itself sends from address a.
func (p *Endpoint) speaksFrom(a netip.Addr) bool { return len(p.Addresses) > 0 && a == p.Addresses[0] }

// wholeTo reports whether an unfragmented packet is one of a claim.
func (h *header) wholeTo(packet []byte, c *Claim) bool { return !h.fragment && h.goesTo(packet, c) }

// goesTo reports whether a packet, or its first fragment, is one of a claim. Headers of TCP are
// longer than those of UDP and begin with the same two ports.
func (h *header) goesTo(packet []byte, c *Claim) bool {
	return h.claimed(c) && c.has(binary.BigEndian.Uint16(packet[h.l4+2:]))
}

// claimed reports whether a packet, or its first fragment, has the protocol of a claim, and ports.
func (h *header) claimed(c *Claim) bool {
	return h.proto == c.Protocol && !h.later && h.total >= h.l4+udpLen
}

// forged returns why to drop a packet that the port's guest sent in the function's name: one of the
// function's claim, from the address that the function itself uses. Otherwise any program in the guest
// could end the connections of others. A first fragment counts too, since the receiver may reassemble
// packets.
func (p *Endpoint) forged(packet []byte, h *header) Reason {
	if p.take == nil || !h.claimed(&p.claim) || !p.speaksFrom(h.src) {
		return none
	}
	switch at := packet[h.l4:]; {
	case p.claim.Ports != nil && p.claim.has(binary.BigEndian.Uint16(at)):
		return DropForgedPort
	case p.claim.Ports == nil && p.claim.has(binary.BigEndian.Uint16(at[2:])):
		return DropForged
	}
	return none
}

// FromFunction takes a packet that a port's function sent, not its guest, with the offload work that
// its transport left. frame has room for an Ethernet header in front of it. It works like FromPort,
// but sends no ICMP errors: the transport detects losses itself.
func (g *Gateway) FromFunction(p *Endpoint, frame []byte, work FunctionWork, f *Forward) (forward bool) {
	defer g.survive(p, g.mark(), frame)
	f.Tunnel, f.peers = nil, nil
	if why := g.fromFunction(p, frame, work, f); why != none {
		g.stats.drop(p, why)
		return false
	}
	return f.Tunnel != nil
}

func (g *Gateway) fromFunction(p *Endpoint, frame []byte, work FunctionWork, f *Forward) Reason {
	b := frame[ethLen:]
	h, why := parseIP(b)
	if why != none {
		return why
	}
	off := work.offload(&h)
	if why = off.checkAgainst(b, &h); why != none {
		return why
	}
	if h.dst.IsMulticast() {
		return g.toGroup(p, frame, &h, f)
	}
	w, ok := g.way(p, h.dst)
	switch {
	case !p.up:
		return DropPortDown
	case !ok, w.to.Kind == ToRouter:
		return DropNoRoute
	case !off.fits(b, &h, w.to.MTU):
		return DropTooBig
	case !w.onLink: // routed between subnets
		if h.ttl <= 1 {
			return DropTTL
		}
		h.decrement(b)
	}
	if w.to.Kind == ToPeer {
		f.start(b, h, off, w.to.MTU, false)
		f.Tunnel = w.tunnel
		return none
	}
	g.stats.Local++
	if w.port == p {
		if !p.deliver(b, &h, off) {
			return DropHairpin
		}
		return none
	}
	if off.gso() != GSONone {
		off.Size = uint16(min(int(off.Size), w.to.MTU-l4Headers(b, &h)))
	}
	binary.BigEndian.PutUint16(frame[12:], h.etherType())
	return g.toPort(p.Function, &w.to, w.port, frame, nil, &h, off)
}

// FunctionWork is the work that a function's TCP left.
type FunctionWork struct {
	Unsummed bool // the checksum is that of the pseudo header alone
	Segment  int  // bytes of data of each segment that the packet stands for; 0: it is one
}

// offload returns the work as the sender of a frame would have left it.
func (w FunctionWork) offload(h *header) (off Offload) {
	if w.Unsummed {
		off = Offload{NeedsCsum: true, CsumStart: uint16(ethLen + h.l4), CsumOffset: tcpCheckAt}
	}
	if w.Segment > 0 {
		off.Size, off.GSO = uint16(w.Segment), GSOTCP4
		if h.v6 {
			off.GSO = GSOTCP6
		}
	}
	return off
}

// PathMTU returns the longest packet that the path from an endpoint to an address carries; 0: there
// is no path.
func (g *Gateway) PathMTU(p *Endpoint, a netip.Addr) int {
	w, ok := g.way(p, a)
	if !ok || w.to.Kind == ToRouter || !p.up {
		return 0
	}
	return min(w.to.MTU, p.MTU)
}

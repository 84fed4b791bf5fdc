package gateway

import "encoding/binary"

// FromPort takes a frame that a port's guest sent and decides where it goes. It reports true when
// there are packets for a tunnel: f tells which, and f.Next gives them. frame is changed in place
// and part of what comes out.
func (g *Gateway) FromPort(now int64, p *Endpoint, frame []byte, off Offload, f *Forward) (forward bool) {
	defer g.survive(p, g.mark(), frame)
	g.stats.FromPorts++
	g.stats.FromPortBytes += uint64(len(frame))
	f.Tunnel = nil
	if why := g.fromPort(now, p, frame, off, f); why != none {
		g.stats.drop(p, why)
		return false
	}
	return f.Tunnel != nil
}

func (g *Gateway) fromPort(now int64, p *Endpoint, frame []byte, off Offload, f *Forward) (why Reason) {
	if !p.up {
		return DropPortDown
	}
	g.follow(p)
	if len(frame) < ethLen {
		return DropTruncated
	}
	dst, src := MAC(frame[:6]), MAC(frame[6:12])
	switch {
	case src[0]&1 != 0 || src == MAC{} || src == p.Gateway, src != p.MAC && !p.Trust && !p.Spoof:
		return DropSourceMAC
	case dst[0]&1 == 0 && dst != p.Gateway:
		return DropOtherMAC
	}
	b := frame[ethLen:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case typeARP:
		return g.station.arp(p, src, b)
	case typeIPv4:
		if len(b) > 0 && b[0]>>4 != 4 {
			return DropHeader
		}
	case typeIPv6:
		if len(b) > 0 && b[0]>>4 != 6 {
			return DropHeader
		}
	default:
		return DropEtherType
	}
	h, why := parseIP(b)
	if why != none {
		return why
	}
	b = b[:h.total]
	if why := off.check(b, &h); why != none {
		return why
	}
	if h.proto == protoFalcon {
		return DropFalcon
	}
	if why, own := g.station.control(p, src, b, &h, off); own {
		return why
	}
	if why := g.admit(p, &h, dst); why != none {
		return why
	}
	p.heard(h.src, src)
	return g.route(now, p, frame, b, h, off, f)
}

// admit checks addresses: a packet must come from the function and go to another station.
func (g *Gateway) admit(p *Endpoint, h *header, dst MAC) Reason {
	switch {
	case !h.dst.IsValid() || h.dst.IsUnspecified() || h.dst.IsLoopback():
		return DropDestination
	case h.dst.IsMulticast() || dst[0]&1 != 0 || h.dst == broadcastIP:
		return DropMulticast
	case h.src.IsUnspecified() || h.src.IsMulticast() || h.src.IsLoopback():
		return DropSourceIP
	case h.src.IsLinkLocalUnicast() && h.v6 || h.dst.IsLinkLocalUnicast():
		return DropLinkLocal
	case !p.maySend(h.src):
		return DropSourceIP
	}
	return none
}

// route finds where an admitted packet goes and makes it fit for the way.
func (g *Gateway) route(now int64, p *Endpoint, frame, b []byte, h header, off Offload, f *Forward) Reason {
	w, ok := g.way(p, h.dst)
	switch {
	case !ok:
		g.station.unreachable(now, p, b, &h)
		return DropNoRoute
	case w.to.Kind == ToRouter:
		return g.station.echo(now, p, b, &h)
	case w.to.at(p):
		return DropHairpin
	}
	f.max = w.to.MTU
	if !p.network.onLink(h.dst) { // a router's work
		if h.ttl <= 1 {
			g.station.timeExceeded(now, p, b, &h)
			return DropTTL
		}
		h.decrement(b)
	}
	if !off.fits(b, &h, f.max) {
		g.station.tooBig(now, p, b, &h, f.max)
		return DropTooBig
	}
	if h.fragment {
		g.stats.Reasons[CountFragments]++
	}
	if h.nested(b) {
		g.stats.Reasons[CountNested]++
	}
	if w.to.Kind == ToPeer {
		f.Tunnel, f.Packet, f.h, f.off, f.ECN, f.Flow = w.tunnel, b, h, off, h.ecn, h.flow(b)
		f.at, f.index = 0, 0
		if off.gso() != GSONone {
			g.stats.Segments += uint64(f.Packets())
		}
		return none
	}
	if off.gso() != GSONone {
		off.Size = uint16(min(int(off.Size), f.max-l4Headers(b, &h)))
	}
	return g.toPort(w, frame[:ethLen+h.total], &h, off)
}

// toPort takes a frame to another port of this NIC.
func (g *Gateway) toPort(w *way, frame []byte, h *header, off Offload) Reason {
	g.stats.Local++
	switch {
	case w.port == nil:
		return g.handOver(&w.to, frame, off)
	case w.port.takes(frame[ethLen:], h):
		return none
	}
	return g.out.deliver(w.port, frame, off)
}

// A frame that its guest wants cut very small would keep the NIC from all others for long. TCP's
// segments are not smaller (Linux: 48 bytes), unless it has few.
const (
	minSegment = 48
	maxCuts    = 128
)

// check tells whether an offload fits the packet it came with. A checksum may be written into the
// upper layer only: all headers before it are checked, and must leave as they were checked.
func (o *Offload) check(b []byte, h *header) Reason {
	start, at := int(o.CsumStart)-ethLen, int(o.CsumStart)-ethLen+int(o.CsumOffset)
	if o.NeedsCsum && (start < h.l4 || at+2 > len(b)) {
		return DropOffload
	}
	switch o.gso() {
	case GSONone:
		if o.GSO != GSONone { // a flag of TCP's without it: no receiver's kernel takes that
			return DropOffload
		}
		return none
	case GSOTCP4, GSOTCP6:
		if h.proto != protoTCP || h.v6 != (o.gso() == GSOTCP6) || len(b) < h.l4+tcpLen || o.CsumOffset != tcpCheckAt {
			return DropOffload
		}
		if doff := int(b[h.l4+12]>>4) * 4; doff < tcpLen || h.l4+doff >= len(b) {
			return DropOffload
		}
	case GSOUDP:
		if h.proto != protoUDP || len(b) <= h.l4+udpLen || o.CsumOffset != udpCheckAt {
			return DropOffload
		}
	default:
		return DropOffload
	}
	if o.Size < minSegment && len(b)-h.l4 > maxCuts*int(o.Size) {
		return DropOffload
	}
	if h.fragment || o.Size == 0 || !o.NeedsCsum || start != h.l4 || l4Headers(b, h) > maxHeaders {
		return DropOffload
	}
	return none
}

// fits tells whether a packet, or what it is to be cut to, can be made no longer than most. TCP's
// segments may be cut shorter than their sender asked for; a datagram's length is its sender's.
func (o *Offload) fits(b []byte, h *header, most int) bool {
	switch o.gso() {
	case GSONone:
		return h.total <= most
	case GSOUDP:
		return min(h.total, l4Headers(b, h)+int(o.Size)) <= most
	}
	return l4Headers(b, h)+minTCP <= most
}

// minTCP is less than any TCP wants to send at once.
const minTCP = 8

package gateway

import "encoding/binary"

// FromPort takes a frame that a port's guest sent and decides where it goes. It returns true if
// there are packets for a tunnel: f.Tunnel says which, and f.Next returns the packets. The frame is
// changed in place and its memory is part of the output. Payload left in the guest's memory stays
// there if the frame goes to a port of this shard, and is copied otherwise.
func (g *Gateway) FromPort(now int64, in *PortInput, f *Forward) (forward bool) {
	defer g.survive(in.From, g.mark(), in.Frame)
	g.stats.FromPorts++
	g.stats.FromPortBytes += uint64(in.len())
	f.Tunnel = nil
	if why := g.fromPort(now, in, f); why != none {
		g.stats.drop(in.From, why)
		return false
	}
	return f.Tunnel != nil
}

func (g *Gateway) fromPort(now int64, in *PortInput, f *Forward) (why Reason) {
	p := in.From
	if !p.up {
		return DropPortDown
	}
	g.follow(p)
	in.untag()
	frame := in.Frame
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
		if !in.Whole() {
			return DropTruncated
		}
		return g.station.arp(p, src, in.Frame[ethLen:])
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
	h, why := parseHead(b, in.len()-ethLen)
	if why == none && in.Rest != nil {
		why = in.complete(&h)
	}
	if why != none {
		return why
	}
	b, off := in.packet(&h), in.Offload
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
	if p.forges(b, &h) {
		return DropRoCE
	}
	p.heard(h.src, src)
	return g.route(now, in, h, f)
}

// admit checks the addresses: a packet must come from the function and go to a single other
// station.
func (g *Gateway) admit(p *Endpoint, h *header, dst MAC) Reason {
	switch {
	case h.dst.IsUnspecified() || h.dst.IsLoopback():
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

// forges reports whether the port's guest sent RoCEv2 from the address that the function itself
// uses. Any program in the guest could end others' connections this way. A first fragment counts
// too, since the receiver may reassemble packets.
func (p *Endpoint) forges(packet []byte, h *header) bool {
	return p.roce != nil && h.toRoCE(packet) && p.speaksFrom(h.src)
}

// route finds where an admitted packet goes and prepares it for that path.
func (g *Gateway) route(now int64, in *PortInput, h header, f *Forward) Reason {
	p, off := in.From, in.Offload
	w, ok := g.way(p, h.dst)
	if in.Rest != nil && (!ok || w.port == nil || w.port.wants(in.Frame[ethLen:], &h)) && !in.Whole() {
		return DropTruncated
	}
	b := in.packet(&h)
	switch {
	case !ok:
		g.station.unreachable(now, p, b, &h)
		return DropNoRoute
	case w.to.Kind == ToRouter:
		return g.station.echo(now, p, b, &h)
	case w.to.at(p):
		return DropHairpin
	}
	if !p.network.onLink(h.dst) { // routed between subnets
		if h.ttl <= 1 {
			g.station.timeExceeded(now, p, in.quote(&h), &h)
			return DropTTL
		}
		h.decrement(b)
	}
	split := !off.fits(b, &h, w.to.MTU)
	switch {
	case !split:
	case !off.splits(b, &h, w.to.MTU):
		g.station.tooBig(now, p, in.quote(&h), &h, w.to.MTU)
		return DropTooBig
	case !in.Whole():
		return DropTruncated
	default:
		b = in.packet(&h)
		g.stats.Reasons[CountFragmented]++
	}
	if h.fragment {
		g.stats.Reasons[CountFragments]++
	}
	if h.nested(b) {
		g.stats.Reasons[CountNested]++
	}
	if w.to.Kind == ToPeer {
		f.start(b, h, off, w.to.MTU, split)
		f.Tunnel = w.tunnel
		if off.gso() != GSONone {
			g.stats.Segments += uint64(f.Packets())
		}
		return none
	}
	if split {
		g.stats.Local++
		return g.splitTo(p.Function, &w.to, w.port, b, h, off)
	}
	if off.gso() != GSONone {
		off.Size = uint16(min(int(off.Size), w.to.MTU-l4Headers(b, &h)))
	}
	return g.toPort(p, w, in.Frame[:ethLen+len(b)], in.Rest, &h, off)
}

// toPort delivers a frame to another port of this NIC.
func (g *Gateway) toPort(from *Endpoint, w *way, frame []byte, rest Rest, h *header, off Offload) Reason {
	g.stats.Local++
	return g.bring(from.Function, &w.to, w.port, frame, rest, h, off)
}

// bring delivers a frame to a port of this NIC; p is nil for a port of another shard. flow is the
// sender that the frame is charged to.
func (g *Gateway) bring(flow uint32, to *Target, p *Endpoint, frame []byte, rest Rest, h *header, off Offload) Reason {
	switch {
	case p == nil:
		return g.handOver(flow, to, frame, off)
	case p.takes(frame[ethLen:], h, off):
		return none
	}
	return g.out.deliver(p, frame, rest, off)
}

// A frame that is cut into very small segments would keep the NIC busy for long. Linux does not use
// TCP segments below 48 bytes. Smaller segments are allowed if the frame makes at most maxCuts.
const (
	minSegment = 48
	maxCuts    = 128
)

// check reports whether an offload fits its packet, all headers of which are in b. A checksum may
// be written into the upper layer only: the headers before it were checked and must leave
// unchanged.
func (o *Offload) check(b []byte, h *header) Reason {
	start, at := int(o.CsumStart)-ethLen, int(o.CsumStart)-ethLen+int(o.CsumOffset)
	if o.NeedsCsum && (start < h.l4 || at+2 > h.total) {
		return DropOffload
	}
	switch o.gso() {
	case GSONone:
		if o.GSO != GSONone { // the ECN flag without TCP segmentation, which no receiver's kernel accepts
			return DropOffload
		}
		return none
	case GSOTCP4, GSOTCP6:
		if h.proto != protoTCP || h.v6 != (o.gso() == GSOTCP6) || h.total < h.l4+tcpLen || o.CsumOffset != tcpCheckAt {
			return DropOffload
		}
		if doff := int(b[h.l4+12]>>4) * 4; doff < tcpLen || h.l4+doff >= h.total {
			return DropOffload
		}
	case GSOUDP:
		if h.proto != protoUDP || h.total <= h.l4+udpLen || o.CsumOffset != udpCheckAt {
			return DropOffload
		}
	default:
		return DropOffload
	}
	if o.Size < minSegment && h.total-h.l4 > maxCuts*int(o.Size) { // also without a size
		return DropOffload
	}
	if h.fragment || !o.NeedsCsum || start != h.l4 || l4Headers(b, h) > maxHeaders {
		return DropOffload
	}
	return none
}

// fits reports whether a packet, or each packet it is to be cut to, can be at most most bytes long.
// TCP segments may be cut shorter than their sender asked for; datagrams keep their length.
func (o *Offload) fits(b []byte, h *header, most int) bool {
	switch o.gso() {
	case GSONone:
		return h.total <= most
	case GSOUDP:
		return min(h.total, l4Headers(b, h)+int(o.Size)) <= most
	}
	return l4Headers(b, h)+minTCP <= most
}

// minTCP is the least payload of a TCP segment, less than any TCP wants to send at once.
const minTCP = 8

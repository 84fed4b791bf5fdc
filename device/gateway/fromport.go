package gateway

import "encoding/binary"

// Rest is the end of a frame that its port left in the guest's memory: payload that has not been
// looked at, and that the guest may change at any time. It is valid until the port is read again.
type Rest interface {
	// Len returns the number of bytes.
	Len() int
	// Fetch copies the bytes to directly behind the beginning of the frame. It is called once. It
	// returns false if the bytes are no longer available.
	Fetch() bool
}

// PortInput is a frame that came from a function's port.
type PortInput struct {
	From    *Endpoint
	Frame   []byte // the part that was copied, at least Ethernet and IP; its capacity has room for the rest
	Offload Offload
	Rest    Rest // nil: all of the frame was copied
}

// Whole fetches the rest into Frame. It returns false if the rest is lost.
func (in *PortInput) Whole() bool { return fetch(&in.Frame, &in.Rest) }

func fetch(frame *[]byte, rest *Rest) bool {
	r := *rest
	if r == nil {
		return true
	}
	if !r.Fetch() {
		return false
	}
	*frame, *rest = (*frame)[:len(*frame)+r.Len()], nil
	return true
}

// taken holds frames of ports on their way out, in order. The gateway uses their memory until it
// has processed them.
type taken struct {
	in   []PortInput
	next int     // index of the next frame
	cut  Forward // packets of the frame before next, while cuts is true
	cuts bool
}

// Take starts processing frames of ports. All frames of the previous call must have been processed.
func (g *Gateway) Take(in []PortInput) {
	if len(in) > 0 {
		g.taken.in, g.taken.next = in, 0
	}
}

// Busy reports whether taken frames are still to be processed.
func (g *Gateway) Busy() bool { return g.taken.next < len(g.taken.in) || g.taken.cuts }

// Outgoing processes taken frames until one has packets for a tunnel, and returns nil when all are
// done. The Forward's Next returns the packets; the caller calls EndFrame after the last one.
func (g *Gateway) Outgoing(now int64) *Forward {
	t := &g.taken
	for !t.cuts {
		if t.next == len(t.in) {
			return nil
		}
		in := &t.in[t.next]
		t.next++
		t.cuts = g.FromPort(now, in, &t.cut)
	}
	return &t.cut
}

// EndFrame ends the processing of the frame that Outgoing returned.
func (g *Gateway) EndFrame() { g.taken.cuts = false }

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
		return g.responder.arp(p, src, in.Frame[ethLen:])
	case typeIPv4:
		if len(b) > 0 && b[0]>>4 != 4 {
			return DropHeader
		}
	case typeIPv6:
		if len(b) > 0 && b[0]>>4 != 6 {
			return DropHeader
		}
		g.responder.advertise(now, p)
	default:
		return DropEtherType
	}
	var h header
	if why = h.parse(b, in.len()-ethLen); why == none && in.Rest != nil {
		why = in.complete(&h)
	}
	if why != none {
		return why
	}
	b, off := in.packet(&h), in.Offload
	if why = off.checkAgainst(b, &h); why != none {
		return why
	}
	if h.proto == protoFalcon {
		return DropFalcon
	}
	if why, own := g.responder.control(p, src, b, &h, off); own {
		return why
	}
	if why := g.admit(p, &h, dst); why != none {
		return why
	}
	if why := p.forged(b, &h); why != none {
		return why
	}
	p.learn(h.src, src)
	return g.route(now, in, &h, f)
}

// untag removes a priority tag: a frame whose VLAN identifier is 0 belongs to no VLAN (IEEE 802.1Q
// §9.6), and the gateway ignores frame priorities.
func (in *PortInput) untag() {
	f := in.Frame
	if len(f) < ethLen+tagLen || binary.BigEndian.Uint16(f[12:]) != typeVLAN || binary.BigEndian.Uint16(f[14:])&0xfff != 0 {
		return
	}
	copy(f[tagLen:], f[:12])
	in.Frame = f[tagLen:]
	if in.Offload.NeedsCsum {
		in.Offload.CsumStart -= tagLen // it counts from the start of the frame
	}
}

func (in *PortInput) len() int {
	if in.Rest != nil {
		return len(in.Frame) + in.Rest.Len()
	}
	return len(in.Frame)
}

// packet returns the IP packet of a frame, as far as it was copied.
func (in *PortInput) packet(h *header) []byte {
	return in.Frame[ethLen:min(ethLen+h.total, len(in.Frame))]
}

// quote returns the IP packet for an ICMP error: all of it if the rest can be fetched.
func (in *PortInput) quote(h *header) []byte {
	in.Whole()
	return in.packet(h)
}

// complete is called after the copied headers were parsed. It leaves only TCP or UDP payload in the
// guest's memory. If headers extend beyond the copied part, or the gateway may need to look into
// the rest, it fetches the rest and parses again.
func (in *PortInput) complete(h *header) (why Reason) {
	if h.total == in.len()-ethLen && h.opaque(in.Frame[ethLen:]) {
		return none
	}
	if !in.Whole() {
		return DropTruncated
	}
	*h, why = parseIP(in.Frame[ethLen:])
	return why
}

// opaque reports whether b contains all headers of a packet, and the gateway need not look at what
// follows them.
func (h *header) opaque(b []byte) bool {
	if h.l4+maxTCP > len(b) {
		return false
	}
	return h.proto == protoTCP || h.proto == protoUDP && binary.BigEndian.Uint16(b[h.l4+2:]) != dhcpServer
}

// maxTCP is the length of the longest TCP header; UDP's is shorter.
const maxTCP = 60

// admit checks the addresses: a packet must come from the function and go to a single other
// host. It need not check those of the last packet again.
func (g *Gateway) admit(p *Endpoint, h *header, dst MAC) Reason {
	switch {
	case p.last.leads(h.src, h.dst, p.followed) && dst[0]&1 == 0:
		return none
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

// route finds where an admitted packet goes and prepares it for that path.
func (g *Gateway) route(now int64, in *PortInput, h *header, f *Forward) Reason {
	p, off := in.From, in.Offload
	w, ok := g.way(p, h.dst)
	if ok {
		w.src = h.src
	}
	if in.Rest != nil && (!ok || w.port == nil || w.port.wants(in.Frame[ethLen:], h)) && !in.Whole() {
		return DropTruncated
	}
	b := in.packet(h)
	switch {
	case !ok:
		g.responder.unreachable(now, p, b, h)
		return DropNoRoute
	case w.to.Kind == ToRouter:
		return g.responder.echo(now, p, b, h)
	case w.to.at(p):
		return DropHairpin
	}
	if !w.onLink { // routed between subnets
		if h.ttl <= 1 {
			g.responder.timeExceeded(now, p, in.quote(h), h)
			return DropTTL
		}
		h.decrement(b)
	}
	split := !off.fits(b, h, w.to.MTU)
	switch {
	case !split:
	case !off.splits(b, h, w.to.MTU):
		g.responder.tooBig(now, p, in.quote(h), h, w.to.MTU)
		return DropTooBig
	case !in.Whole():
		return DropTruncated
	default:
		b = in.packet(h)
		g.stats.Reasons[CountFragmented]++
	}
	if h.fragment {
		g.stats.Reasons[CountFragments]++
	}
	if h.nested(b) {
		g.stats.Reasons[CountNested]++
	}
	if w.to.Kind == ToPeer {
		f.start(b, *h, off, w.to.MTU, split)
		f.Tunnel = w.tunnel
		if off.gso() != GSONone {
			g.stats.Segments += uint64(f.Packets())
		}
		return none
	}
	g.stats.Local++
	if split {
		return g.splitTo(p.Function, &w.to, w.port, b, *h, off)
	}
	if off.gso() != GSONone {
		off.Size = uint16(min(int(off.Size), w.to.MTU-l4Headers(b, h)))
	}
	return g.toPort(p.Function, &w.to, w.port, in.Frame[:ethLen+len(b)], in.Rest, h, off)
}

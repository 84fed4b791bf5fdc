package gateway

import (
	"encoding/binary"
	"net/netip"

	"github.com/falcon-vnic/vnic/internal/checksum"
)

// responder is the gateway as the guests of its ports see it, the only other host on the link. It
// answers ARP, neighbour discovery, DHCP and echo, and sends the errors of a router.
type responder struct {
	replies replies
	stats   *Stats // the gateway's
	knows   func(tenant uint32, gid [16]byte) bool
}

// control answers DHCP and neighbour discovery, the protocols between a port and its gateway. own
// is false for any other packet.
func (s *responder) control(p *Endpoint, src MAC, b []byte, h *header, off Offload) (why Reason, own bool) {
	if h.fragment || off.GSO != GSONone {
		return none, false
	}
	l4 := b[h.l4:]
	switch {
	case !h.v6 && h.proto == protoUDP && len(l4) >= udpLen && binary.BigEndian.Uint16(l4[2:]) == dhcpServer && binary.BigEndian.Uint16(l4) == dhcpClient &&
		(h.dst == broadcastIP || h.dst == p.serverID()):
		return s.dhcp(p, src, l4[udpLen:]), true
	case h.v6 && h.proto == protoICMP6 && len(l4) > 0 && l4[0] >= ndRouterSolicit && l4[0] <= ndRedirect:
		return s.nd(p, src, b, h), true
	}
	return none, false
}

// reply returns the memory of a frame of n bytes to a host behind a port, with its Ethernet
// header written, or nil when the ring is full.
func (s *responder) reply(p *Endpoint, to MAC, etherType uint16, n int) []byte {
	r := &s.replies
	if r.count == maxReplies {
		s.stats.drop(p, DropReplyFull)
		return nil
	}
	i := (r.head + r.count) % maxReplies
	r.lens[i], r.ports[i] = n, p
	r.count++
	f := r.frames[i][:n]
	p.ethernet(f, to, etherType)
	return f
}

// answersFor reports whether the gateway answers for a at the port: for its own addresses, and for
// others' addresses that have a route.
func (p *Endpoint) answersFor(a netip.Addr) bool {
	if a == p.serverID() || a == p.linkLocal() {
		return true
	}
	to, ok := p.network.find(a)
	return ok && !to.at(p)
}

// Bounds of the gateway's own replies.
const (
	maxReplies = 64
	replySize  = ethLen + 1280 // an ICMPv6 error of the minimum MTU (RFC 4443 §3.2)
)

// replies is a ring of frames for ports: ARP, neighbour discovery, DHCP and echo answers, ARP
// requests and solicitations, and ICMP errors.
type replies struct {
	frames [maxReplies][replySize]byte
	lens   [maxReplies]int
	ports  [maxReplies]*Endpoint
	head   int
	count  int
}

// flush passes the replies to the output until it is full. Their memory is valid until the next
// reply.
func (r *replies) flush(o *output) {
	for r.count > 0 {
		if !o.add(r.ports[r.head], r.frames[r.head][:r.lens[r.head]], nil, Offload{}) {
			return
		}
		r.ports[r.head] = nil
		r.head = (r.head + 1) % maxReplies
		r.count--
	}
}

const (
	icmpEchoReply    = 0
	icmpUnreachable  = 3
	icmpEcho         = 8
	icmpTimeExceeded = 11
	codeHost         = 1
	codeFragNeeded   = 4

	icmp6Unreachable  = 1
	icmp6TooBig       = 2
	icmp6TimeExceeded = 3
	icmp6Echo         = 128
	icmp6EchoReply    = 129
	icmp6Info         = 128 // types from here on are not errors
	code6Address      = 3

	icmpLen    = 8
	quoteIPv4  = 548 // bytes of the packet that an error for IPv4 quotes: 576 in all (RFC 1812 §4.3.2.3)
	quoteIPv6  = 1280 - ipv6Len - icmpLen
	maxEchoing = replySize - ethLen
)

// tooBig tells the sender that a packet is too long, and the MTU that it must fit (RFC 1191, RFC
// 8201). An IPv4 packet without DF gets here only if it cannot be sent as fragments (splits).
func (s *responder) tooBig(now int64, p *Endpoint, b []byte, h *header, mtu int) {
	if h.v6 {
		s.icmpError(now, p, b, h, icmp6TooBig, 0, uint32(mtu))
		return
	}
	s.icmpError(now, p, b, h, icmpUnreachable, codeFragNeeded, uint32(min(mtu, 0xffff)))
}

func (s *responder) unreachable(now int64, p *Endpoint, b []byte, h *header) {
	if h.v6 {
		s.icmpError(now, p, b, h, icmp6Unreachable, code6Address, 0)
		return
	}
	s.icmpError(now, p, b, h, icmpUnreachable, codeHost, 0)
}

func (s *responder) timeExceeded(now int64, p *Endpoint, b []byte, h *header) {
	if h.v6 {
		s.icmpError(now, p, b, h, icmp6TimeExceeded, 0, 0)
		return
	}
	s.icmpError(now, p, b, h, icmpTimeExceeded, 0, 0)
}

// icmpError sends an error about a packet to the port it came from. It never reports an error about
// an error, nor about any fragment but the first (RFC 1122 §3.2.2, RFC 4443 §2.4). Its rate is
// limited.
func (s *responder) icmpError(now int64, p *Endpoint, b []byte, h *header, kind, code uint8, rest uint32) {
	l4 := b[h.l4:]
	switch {
	case h.proto == protoICMP && !h.v6 && (len(l4) < 1 || !icmpQuery(l4[0])),
		h.proto == protoICMP6 && h.v6 && (len(l4) < 1 || l4[0] < icmp6Info):
		return
	case h.fragment && !h.v6 && binary.BigEndian.Uint16(b[6:])&0x1fff != 0:
		return
	case !p.errors.take(now):
		s.stats.drop(p, DropICMPLimit)
		return
	}
	src, ok := p.network.router(h.v6)
	switch {
	case ok:
	case h.v6:
		src = p.linkLocal()
	default:
		src = h.dst // in the name of the unreachable host
	}
	if h.v6 {
		quote := min(len(b), quoteIPv6)
		f := s.reply(p, s.macOf(p, h.src), typeIPv6, ethLen+ipv6Len+icmpLen+quote)
		if f == nil {
			return
		}
		r := f[ethLen:]
		putIPv6(r, protoICMP6, 64, src, h.src, icmpLen+quote)
		putICMP(r[ipv6Len:], kind, code, rest, b[:quote])
		finishICMP6(r)
	} else {
		quote := min(len(b), quoteIPv4)
		f := s.reply(p, s.macOf(p, h.src), typeIPv4, ethLen+ipv4Len+icmpLen+quote)
		if f == nil {
			return
		}
		r := f[ethLen:]
		putIPv4(r, protoICMP, src, h.src, len(r))
		putICMP(r[ipv4Len:], kind, code, rest, b[:quote])
		finishICMP4(r)
	}
	s.stats.Reasons[CountICMP]++
}

func putICMP(m []byte, kind, code uint8, rest uint32, quote []byte) {
	m[0], m[1], m[2], m[3] = kind, code, 0, 0
	binary.BigEndian.PutUint32(m[4:], rest)
	copy(m[icmpLen:], quote)
}

func finishICMP4(b []byte) {
	m := b[ipv4Len:]
	m[2], m[3] = 0, 0
	binary.BigEndian.PutUint16(m[2:], ^checksum.Sum(m))
}

// icmpQuery reports whether an ICMP type is a query or an answer, not an error.
func icmpQuery(kind uint8) bool {
	return kind == icmpEchoReply || kind == icmpEcho || kind >= 13 && kind <= 18
}

// echo answers a ping to a router's address. Router addresses answer nothing else.
func (s *responder) echo(now int64, p *Endpoint, b []byte, h *header) Reason {
	request, answer := byte(icmpEcho), byte(icmpEchoReply)
	if h.v6 {
		request, answer = icmp6Echo, icmp6EchoReply
	}
	icmp := h.proto == protoICMP && !h.v6 || h.proto == protoICMP6 && h.v6
	m := b[h.l4:]
	if !icmp || h.fragment || len(m) < icmpLen || m[0] != request || m[1] != 0 {
		return DropDestination
	}
	n := ipv4Len
	etherType := uint16(typeIPv4)
	if h.v6 {
		n, etherType = ipv6Len, typeIPv6
	}
	if n+len(m) > maxEchoing {
		return DropTooBig
	}
	if !p.errors.take(now) {
		return DropICMPLimit
	}
	f := s.reply(p, s.macOf(p, h.src), etherType, ethLen+n+len(m))
	if f == nil {
		return none
	}
	r := f[ethLen:]
	copy(r[n:], m)
	r[n] = answer
	if h.v6 {
		putIPv6(r, protoICMP6, 64, h.dst, h.src, len(m))
		finishICMP6(r)
	} else {
		putIPv4(r, protoICMP, h.dst, h.src, len(r))
		finishICMP4(r)
	}
	s.stats.Reasons[CountEcho]++
	return none
}

// bucket limits a rate: it gains a token every errorEvery, up to errorBurst.
type bucket struct {
	tokens int64
	last   int64
}

const (
	errorBurst = 50
	errorEvery = 10_000_000 // ns for another token
)

func (b *bucket) take(now int64) bool {
	if b.last == 0 {
		b.tokens, b.last = errorBurst, now
	}
	n := (now - b.last) / errorEvery
	b.tokens, b.last = min(errorBurst, b.tokens+n), b.last+n*errorEvery
	if b.tokens <= 0 {
		return false
	}
	b.tokens--
	return true
}

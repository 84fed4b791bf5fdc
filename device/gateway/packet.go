package gateway

import (
	"encoding/binary"
	"net/netip"

	"github.com/falcon-vnic/vnic/internal/checksum"
)

const (
	// EthernetLen is the length of an Ethernet header.
	EthernetLen = 14

	ethLen  = EthernetLen
	ipv4Len = 20
	ipv6Len = 40
	tcpLen  = 20
	udpLen  = 8

	typeIPv4 = 0x0800
	typeARP  = 0x0806
	typeVLAN = 0x8100
	tagLen   = 4
	typeIPv6 = 0x86dd

	protoICMP   = 1
	protoIPIP   = 4
	protoTCP    = 6
	protoUDP    = 17
	protoIPv6   = 41
	protoGRE    = 47
	protoICMP6  = 58
	protoFalcon = 252

	protoHopByHop = 0
	protoRouting  = 43
	protoFragment = 44
	protoAH       = 51
	protoDstOpts  = 60
	protoMobility = 135
	protoHIP      = 139
	protoShim6    = 140
	maxExtensions = 8

	ecnMask = 3
	ecnECT1 = 1
	ecnECT0 = 2
	ecnCE   = 3
)

var broadcastIP = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// header holds the parts of an IP packet's headers that the gateway uses.
type header struct {
	v6       bool
	fragment bool // a fragment, also the first
	later    bool // a later fragment, without the upper layer's header
	df       bool // must not be fragmented; always true for IPv6
	proto    uint8
	class    uint8 // TOS or traffic class: DSCP and, in the two lower bits, ECN
	ttl      uint8
	l4       int // offset of the upper layer
	total    int // length according to the header
	src, dst netip.Addr
}

func (h *header) etherType() uint16 {
	if h.v6 {
		return typeIPv6
	}
	return typeIPv4
}

// parseIP checks the header at the start of b, which may be longer (Ethernet padding).
func parseIP(b []byte) (h header, why Reason) {
	why = h.parse(b, len(b))
	return h, why
}

// parse sets h, which is zero, to the headers of a packet of n bytes of which b is the beginning. It
// stops at the first header that is not in b; l4 is then beyond b, or too close to its end for that
// header.
func (h *header) parse(b []byte, n int) Reason {
	if len(b) < 1 {
		return DropTruncated
	}
	switch b[0] >> 4 {
	case 4:
		return h.parseIPv4(b, n)
	case 6:
		return h.parseIPv6(b, n)
	}
	return DropHeader
}

func (h *header) parseIPv4(b []byte, n int) Reason {
	if len(b) < ipv4Len {
		return DropTruncated
	}
	hlen, total := int(b[0]&0xf)*4, int(binary.BigEndian.Uint16(b[2:]))
	switch {
	case hlen < ipv4Len:
		return DropHeader
	case hlen > total || total > n:
		return DropTruncated
	case hlen <= len(b) && checksum.Sum(b[:hlen]) != 0xffff:
		return DropHeader
	}
	frag := binary.BigEndian.Uint16(b[6:])
	if frag&0x8000 != 0 {
		return DropHeader // reserved
	}
	h.fragment, h.later, h.df = frag&0x3fff != 0, frag&0x1fff != 0, frag&0x4000 != 0
	h.proto, h.class, h.ttl, h.l4, h.total = b[9], b[1], b[8], hlen, total
	h.src, h.dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	return none
}

func (h *header) parseIPv6(b []byte, n int) Reason {
	if len(b) < ipv6Len {
		return DropTruncated
	}
	total := ipv6Len + int(binary.BigEndian.Uint16(b[4:]))
	if total > n {
		return DropTruncated
	}
	h.v6, h.df = true, true
	h.proto, h.class, h.ttl, h.l4, h.total = b[6], b[0]<<4|b[1]>>4, b[7], ipv6Len, total
	h.src, h.dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	if h.src.Is4In6() || h.dst.Is4In6() { // never on a wire (RFC 4291 §2.5.5.2)
		return DropHeader
	}
	return h.extensions(b)
}

// extensions skips extension headers, so that they cannot hide the upper layer (RFC 8200 §4).
func (h *header) extensions(b []byte) Reason {
	for n := 0; h.extended(); n++ {
		switch {
		case h.l4+8 > h.total:
			return DropTruncated
		case h.l4+8 > len(b): // see parse
			return none
		}
		length := 8
		switch h.proto {
		case protoAH:
			length += 4 * int(b[h.l4+1])
		case protoFragment:
			if binary.BigEndian.Uint16(b[h.l4+2:])&^6 != 0 {
				h.fragment = true
			}
			if binary.BigEndian.Uint16(b[h.l4+2:])&^7 != 0 { // no header follows
				h.later, h.proto, h.l4 = true, b[h.l4], h.l4+length
				return none
			}
		default:
			length += 8 * int(b[h.l4+1])
		}
		if h.l4+length > h.total {
			return DropTruncated
		}
		if n == maxExtensions {
			return DropHeader
		}
		h.proto, h.l4 = b[h.l4], h.l4+length
	}
	return none
}

// extended reports whether the next header is an extension header.
func (h *header) extended() bool {
	switch h.proto {
	case protoHopByHop, protoRouting, protoFragment, protoAH, protoDstOpts, protoMobility, protoHIP, protoShim6:
		return true
	}
	return false
}

// nested reports whether a packet contains another tunnel's packet.
func (h *header) nested(b []byte) bool {
	switch h.proto {
	case protoIPIP, protoIPv6, protoGRE:
		return true
	case protoUDP:
		return !h.fragment && h.total >= h.l4+udpLen && binary.BigEndian.Uint16(b[h.l4+2:]) == pspPort
	}
	return false
}

const pspPort = 1000

// flow returns a hash of the fields that identify a flow, to spread flows over paths.
func (h *header) flow(b []byte) uint32 {
	x := uint32(h.proto)
	addrs := b[12:20]
	if h.v6 {
		addrs = b[8:40]
	}
	for ; len(addrs) >= 4; addrs = addrs[4:] {
		x = (x ^ binary.BigEndian.Uint32(addrs)) * 0x9E3779B1
	}
	if (h.proto == protoTCP || h.proto == protoUDP) && !h.fragment && h.total >= h.l4+4 {
		x = (x ^ binary.BigEndian.Uint32(b[h.l4:])) * 0x9E3779B1
	}
	return x ^ x>>16
}

func (h *header) ecn() uint8 { return h.class & ecnMask }

// setECN changes the ECN field.
func (h *header) setECN(b []byte, ecn uint8) {
	h.class = h.class&^ecnMask | ecn
	if h.v6 {
		b[1] = b[1]&^(ecnMask<<4) | ecn<<4
		return
	}
	b[1] = b[1]&^ecnMask | ecn
	finishIPv4(b, h.l4)
}

// decrement reduces the TTL or hop limit by one.
func (h *header) decrement(b []byte) {
	h.ttl--
	if h.v6 {
		b[7] = h.ttl
		return
	}
	b[8] = h.ttl
	finishIPv4(b, h.l4)
}

// finishIPv4 writes the header checksum.
func finishIPv4(b []byte, hlen int) {
	b[10], b[11] = 0, 0
	binary.BigEndian.PutUint16(b[10:], ^checksum.Sum(b[:hlen]))
}

// putIPv4 writes a header of 20 bytes for a packet of total bytes.
func putIPv4(b []byte, proto uint8, src, dst netip.Addr, total int) {
	clear(b[:ipv4Len])
	b[0], b[8], b[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(b[2:], uint16(total))
	s, d := src.As4(), dst.As4()
	copy(b[12:], s[:])
	copy(b[16:], d[:])
	finishIPv4(b, ipv4Len)
}

// putIPv6 writes a header for a packet with payload bytes of payload.
func putIPv6(b []byte, proto, hops uint8, src, dst netip.Addr, payload int) {
	clear(b[:ipv6Len])
	b[0], b[6], b[7] = 0x60, proto, hops
	binary.BigEndian.PutUint16(b[4:], uint16(payload))
	s, d := src.As16(), dst.As16()
	copy(b[8:], s[:])
	copy(b[24:], d[:])
}

// finishL4 writes the upper layer's checksum at offset at of the upper layer. The headers must be
// complete.
func finishL4(packet []byte, h *header, at int) {
	b := packet[h.l4:h.total]
	b[at], b[at+1] = 0, 0
	c := ^checksum.Fold(h.pseudo(packet, len(b)) + uint32(checksum.Sum(b)))
	if c == 0 && h.proto == protoUDP {
		c = 0xffff
	}
	binary.BigEndian.PutUint16(b[at:], c)
}

// MAC is an Ethernet address.
type MAC = [6]byte

const (
	tcpCheckAt = 16
	udpCheckAt = 6
)

// pseudo returns the sum of the pseudo header of an upper layer of n bytes, less than 64 KiB (RFC
// 9293 §3.1, RFC 8200 §8.1).
func (h *header) pseudo(packet []byte, n int) uint32 {
	addrs := packet[12:20]
	if h.v6 {
		addrs = packet[8:40]
	}
	return uint32(checksum.Sum(addrs)) + uint32(h.proto) + uint32(n)
}

// l4Valid reports whether the checksum of the packet's upper layer is right.
func (h *header) l4Valid(packet []byte) bool {
	b := packet[h.l4:h.total]
	return checksum.Fold(h.pseudo(packet, len(b))+uint32(checksum.Sum(b))) == 0xffff
}

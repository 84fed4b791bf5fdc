package underlay

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/falcon-vnic/vnic/internal/checksum"
)

const (
	ethLen     = 14
	typeIPv4   = 0x0800
	typeARP    = 0x0806
	typeVLAN   = 0x8100
	udpLen     = 8
	initialTTL = 255 // receivers compute the hop count from it
)

// MAC is an Ethernet address.
type MAC = [6]byte

var broadcast = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func putEthernet(b []byte, dst, src MAC, etherType uint16) {
	_ = b[ethLen-1]
	copy(b, dst[:])
	copy(b[6:], src[:])
	binary.BigEndian.PutUint16(b[12:], etherType)
}

// Untag removes a priority tag from a frame: a frame whose VLAN identifier is 0 belongs to no VLAN
// (IEEE 802.1Q §9.6). Switches and NICs may add such a tag on the path.
func Untag(frame []byte) []byte {
	const tag = 4
	if len(frame) < ethLen+tag || binary.BigEndian.Uint16(frame[12:]) != typeVLAN || binary.BigEndian.Uint16(frame[14:])&0xfff != 0 {
		return frame
	}
	copy(frame[tag:], frame[:12])
	return frame[tag:]
}

// unicast reports whether m may be the address of one host.
func unicast(m MAC) bool { return m[0]&1 == 0 && m != MAC{} }

// ECT0 is the ECN field of packets from ECN-capable senders (RFC 3168 §5).
const ECT0 = 2

const (
	ipv4Len  = 20
	protoUDP = 17

	flagDF     = 0x4000
	maskFrag   = 0xbfff // reserved bit, MF and fragment offset: everything but DF
	ecnCE      = 3
	ecnMask    = 3
	maxPackets = 1<<16 - 1 // total length field
)

// Errors of the IPv4 parser.
var (
	errIPShort    = errors.New("underlay: IPv4 packet shorter than its header says")
	errIPHeader   = errors.New("underlay: not an IPv4 header")
	errIPChecksum = errors.New("underlay: IPv4 header checksum is wrong")
	errIPFragment = errors.New("underlay: IPv4 fragment")
)

// ipv4 holds the used fields of an IPv4 header.
type ipv4 struct {
	tos      uint8
	ttl      uint8
	protocol uint8
	src, dst [4]byte
}

// put writes a 20-byte header for a packet of total bytes to b: DF set, identification 0 (RFC 6864:
// atomic datagram).
func (h *ipv4) put(b []byte, total int) {
	_ = b[ipv4Len-1]
	b[0], b[1] = 0x45, h.tos
	binary.BigEndian.PutUint16(b[2:], uint16(total))
	binary.BigEndian.PutUint16(b[4:], 0)
	binary.BigEndian.PutUint16(b[6:], flagDF)
	b[8], b[9] = h.ttl, h.protocol
	b[10], b[11] = 0, 0
	copy(b[12:], h.src[:])
	copy(b[16:], h.dst[:])
	binary.BigEndian.PutUint16(b[10:], ^checksum.Sum(b[:ipv4Len]))
}

// parseIPv4 checks the header at the start of b and returns it with the bytes between header and
// total length. b may be longer (Ethernet padding).
func parseIPv4(b []byte) (h ipv4, payload []byte, err error) {
	if len(b) < ipv4Len {
		return h, nil, errIPShort
	}
	hlen, total := int(b[0]&0xf)*4, int(binary.BigEndian.Uint16(b[2:]))
	switch {
	case b[0]>>4 != 4 || hlen < ipv4Len:
		return h, nil, errIPHeader
	case hlen > total || total > len(b):
		return h, nil, errIPShort
	case checksum.Sum(b[:hlen]) != 0xffff:
		return h, nil, errIPChecksum
	case binary.BigEndian.Uint16(b[6:])&maskFrag != 0:
		return h, nil, errIPFragment
	}
	h = ipv4{tos: b[1], ttl: b[8], protocol: b[9], src: [4]byte(b[12:16]), dst: [4]byte(b[16:20])}
	return h, b[hlen:total], nil
}

// hostAddr reports whether a may be the source of a packet from another host.
func hostAddr(a [4]byte) bool {
	addr := netip.AddrFrom4(a)
	return !addr.IsUnspecified() && !addr.IsMulticast() && !addr.IsLoopback() && a != [4]byte{255, 255, 255, 255}
}

const (
	ipv6Len    = 40
	typeIPv6   = 0x86dd
	protoICMP6 = 58
	protoFrag6 = 44 // fragment header
	maskFlow   = 1<<20 - 1
)

// Errors of the IPv6 parser.
var (
	errIP6Short    = errors.New("underlay: IPv6 packet shorter than its header says")
	errIP6Header   = errors.New("underlay: not an IPv6 header")
	errIP6Fragment = errors.New("underlay: IPv6 fragment")
)

// ipv6 holds the fields of an IPv6 header (RFC 8200 §3). Extension headers are not supported:
// packets that have one are dropped.
type ipv6 struct {
	class    uint8 // traffic class; its lower two bits are ECN
	flow     uint32
	next     uint8
	hopLimit uint8
	src, dst [16]byte
}

// put writes the header of a packet with payload bytes behind it to b.
func (h *ipv6) put(b []byte, payload int) {
	_ = b[ipv6Len-1]
	binary.BigEndian.PutUint32(b, 6<<28|uint32(h.class)<<20|h.flow&maskFlow)
	binary.BigEndian.PutUint16(b[4:], uint16(payload))
	b[6], b[7] = h.next, h.hopLimit
	copy(b[8:], h.src[:])
	copy(b[24:], h.dst[:])
}

// parseIPv6 checks the header at the start of b and returns it with its payload. b may be longer
// (Ethernet padding).
func parseIPv6(b []byte) (h ipv6, payload []byte, err error) {
	if len(b) < ipv6Len {
		return h, nil, errIP6Short
	}
	word, n := binary.BigEndian.Uint32(b), int(binary.BigEndian.Uint16(b[4:]))
	switch {
	case word>>28 != 6:
		return h, nil, errIP6Header
	case ipv6Len+n > len(b):
		return h, nil, errIP6Short
	case b[6] == protoFrag6:
		return h, nil, errIP6Fragment
	}
	h = ipv6{class: uint8(word >> 20), flow: word & maskFlow, next: b[6], hopLimit: b[7], src: [16]byte(b[8:24]), dst: [16]byte(b[24:40])}
	return h, b[ipv6Len : ipv6Len+n], nil
}

// hostAddr6 reports whether a may be the source of a packet from another host.
func hostAddr6(a netip.Addr) bool {
	return a.Is6() && !a.Is4In6() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback()
}

// multicastMAC returns the Ethernet address of an IPv6 multicast address (RFC 2464 §7).
func multicastMAC(a [16]byte) MAC { return MAC{0x33, 0x33, a[12], a[13], a[14], a[15]} }

// solicitedNode returns the multicast address to which neighbour solicitations for a are sent (RFC
// 4291 §2.7.1).
func solicitedNode(a [16]byte) [16]byte {
	return [16]byte{0xff, 2, 11: 1, 12: 0xff, 13: a[13], 14: a[14], 15: a[15]}
}

var allNodes = [16]byte{0xff, 2, 15: 1} // ff02::1

// MarkCE marks congestion experienced in the IP header of an Ethernet frame, as a router would, if
// its sender is ECN-capable (RFC 3168 §5). It reports whether it did.
func MarkCE(frame []byte) bool {
	if len(frame) < ethLen+ipv4Len {
		return false
	}
	ip := frame[ethLen:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case typeIPv4:
		if ip[0]>>4 != 4 || ip[1]&ecnMask == 0 {
			return false
		}
		before := binary.BigEndian.Uint16(ip)
		ip[1] |= ecnCE
		adjust(ip[10:], before, binary.BigEndian.Uint16(ip))
	case typeIPv6:
		if ip[0]>>4 != 6 || ip[1]>>4&ecnMask == 0 {
			return false
		}
		ip[1] |= ecnCE << 4
	default:
		return false
	}
	return true
}

// adjust updates a checksum for a changed word (RFC 1624 §3).
func adjust(check []byte, before, after uint16) {
	s := uint32(^binary.BigEndian.Uint16(check)) + uint32(^before) + uint32(after)
	binary.BigEndian.PutUint16(check, ^checksum.Fold(s))
}

package underlay

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

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

package underlay

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

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
	binary.BigEndian.PutUint16(b[10:], ^sum(b[:ipv4Len]))
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
	case sum(b[:hlen]) != 0xffff:
		return h, nil, errIPChecksum
	case binary.BigEndian.Uint16(b[6:])&maskFrag != 0:
		return h, nil, errIPFragment
	}
	h = ipv4{tos: b[1], ttl: b[8], protocol: b[9], src: [4]byte(b[12:16]), dst: [4]byte(b[16:20])}
	return h, b[hlen:total], nil
}

// sum returns the ones' complement sum of RFC 1071; over a header with a correct checksum it is
// 0xffff. len(b) must be even.
func sum(b []byte) uint16 {
	var s uint32
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(b[0])<<8 | uint32(b[1])
	}
	s = s>>16 + s&0xffff
	return uint16(s>>16 + s)
}

// hostAddr reports whether a may be the source of a packet from another host.
func hostAddr(a [4]byte) bool {
	addr := netip.AddrFrom4(a)
	return !addr.IsUnspecified() && !addr.IsMulticast() && !addr.IsLoopback() && a != [4]byte{255, 255, 255, 255}
}

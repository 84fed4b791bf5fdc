package underlay

import "encoding/binary"

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
	s = s>>16 + s&0xffff
	binary.BigEndian.PutUint16(check, ^uint16(s>>16+s))
}

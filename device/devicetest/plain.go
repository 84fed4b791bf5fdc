package devicetest

import (
	"encoding/binary"
)

// FinishHeader completes the checksum of an IPv4 header.
func FinishHeader(ip []byte) {
	ip[10], ip[11] = 0, 0
	s := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		s += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	s = s>>16 + s&0xffff
	binary.BigEndian.PutUint16(ip[10:], ^uint16(s>>16+s))
}

// Host1 and Host2 are the tenant addresses of the first VF of either NIC of Config.
var (
	Host1 = [4]byte{192, 168, 100, 11}
	Host2 = [4]byte{192, 168, 100, 21}
)

package wire

import "hash/crc32"

// The ICRC covers what no hop may change: CRC-32 over 64 one bits, then over the packet from the IP
// header to the pad, with the fields that hops do change set to ones (Annex A17.3.3).

// ones is the CRC of the 64 one bits.
var ones = crc32.ChecksumIEEE([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})

func crc(masked []byte) uint32 { return crc32.Update(ones, crc32.IEEETable, masked) }

// variant holds the fields of a packet that the ICRC does not cover.
type variant struct {
	head [4]byte // of IPv6; TOS in the second byte
	hops byte
	ip   [2]byte // checksum of IPv4
	udp  [2]byte // checksum
	bth  byte    // FECN, BECN and reserved bits
}

// mask sets these fields to ones in a packet whose UDP header is at ip, and returns their values.
func mask(b []byte, ip int) (v variant) {
	copy(v.head[:], b)
	if ip == ipv4Len {
		v.hops, v.ip = b[8], [2]byte(b[10:])
		b[1], b[8], b[10], b[11] = 0xff, 0xff, 0xff, 0xff
	} else {
		v.hops = b[7]
		b[0], b[1], b[2], b[3], b[7] = b[0]|0x0f, 0xff, 0xff, 0xff, 0xff
	}
	v.udp, v.bth = [2]byte(b[ip+6:]), b[ip+udpLen+4]
	b[ip+6], b[ip+7], b[ip+udpLen+4] = 0xff, 0xff, 0xff
	return v
}

// restore undoes mask.
func (v *variant) restore(b []byte, ip int) {
	copy(b, v.head[:])
	if ip == ipv4Len {
		b[8] = v.hops
		copy(b[10:], v.ip[:])
	} else {
		b[7] = v.hops
	}
	copy(b[ip+6:], v.udp[:])
	b[ip+udpLen+4] = v.bth
}

package rof

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/rdma/verbs"
)

const (
	protoUDP   = 17
	roceHeader = 8 + 12 + 8 + 4 // UDP, BTH, DETH, ICRC: the headers of RoCE v2 around the data
	immediate  = 4              // ImmDt, if present
)

// putGRH writes what real NICs put before a datagram of n bytes of data and immediate data: the
// IPv6 header, or 20 zero bytes and the IPv4 header (RoCE v2, Annex A17.4.5). Programs expect the
// headers of RoCE v2, so these have the same contents. Verbs libraries check the IPv4 checksum to
// tell the two apart.
func (l *Link) putGRH(b *[verbs.GRHSize]byte, n int) {
	clear(b[:])
	length := roceHeader + (n+3)&^3
	if !verbs.IsIPv4(l.to.GID) {
		binary.BigEndian.PutUint32(b[0:], 6<<28|uint32(l.to.TrafficClass)<<20)
		binary.BigEndian.PutUint16(b[4:], uint16(length))
		b[6], b[7] = protoUDP, l.to.HopLimit
		copy(b[8:], l.to.GID[:])
		copy(b[24:], l.own[:])
		return
	}
	h := b[20:]
	h[0], h[1] = 0x45, l.to.TrafficClass
	binary.BigEndian.PutUint16(h[2:], uint16(20+length))
	h[6] = 0x40 // do not fragment
	h[8], h[9] = l.to.HopLimit, protoUDP
	copy(h[12:], l.to.GID[12:])
	copy(h[16:], l.own[12:])
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	sum = sum>>16 + sum&0xffff
	sum += sum >> 16 // the carry of that
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum))
}

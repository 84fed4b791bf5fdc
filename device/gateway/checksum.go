package gateway

import (
	"encoding/binary"
	"math/bits"
)

// sum returns the ones' complement sum of b (RFC 1071 §2). It adds 64 bits at a time in
// little-endian order, and swaps the bytes of the result (the sum of byte-swapped words is the
// byte-swapped sum). An odd length counts as if a zero byte followed.
func sum(b []byte) uint16 {
	var s, carries, c uint64
	for len(b) >= 64 { // the carry chain starts anew each round, so that the processor can overlap rounds
		x, c := bits.Add64(binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), 0)
		x, c = bits.Add64(x, binary.LittleEndian.Uint64(b[16:]), c)
		x, c = bits.Add64(x, binary.LittleEndian.Uint64(b[24:]), c)
		x, c = bits.Add64(x, binary.LittleEndian.Uint64(b[32:]), c)
		x, c = bits.Add64(x, binary.LittleEndian.Uint64(b[40:]), c)
		x, c = bits.Add64(x, binary.LittleEndian.Uint64(b[48:]), c)
		x, c = bits.Add64(x, binary.LittleEndian.Uint64(b[56:]), c)
		s, c = bits.Add64(s, x, c)
		carries += c
		b = b[64:]
	}
	s, c = bits.Add64(s, carries, 0)
	s += c
	for len(b) >= 8 {
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b), 0)
		s += c
		b = b[8:]
	}
	var tail [8]byte
	copy(tail[:], b)
	s, c = bits.Add64(s, binary.LittleEndian.Uint64(tail[:]), 0)
	s += c
	s = s>>32 + s&0xffffffff
	s = s>>32 + s&0xffffffff
	return bits.ReverseBytes16(fold(uint32(s>>16) + uint32(s&0xffff)))
}

// fold reduces a sum to 16 bits, in ones' complement.
func fold(s uint32) uint16 {
	s = s>>16 + s&0xffff
	return uint16(s>>16 + s)
}

// pseudo returns the sum of the pseudo header of an upper layer of n bytes, less than 64 KiB (RFC
// 9293 §3.1, RFC 8200 §8.1).
func (h *header) pseudo(packet []byte, n int) uint32 {
	addrs := packet[12:20]
	if h.v6 {
		addrs = packet[8:40]
	}
	return uint32(sum(addrs)) + uint32(h.proto) + uint32(n)
}

// l4Valid reports whether the checksum of the packet's upper layer is right.
func (h *header) l4Valid(packet []byte) bool {
	b := packet[h.l4:h.total]
	return fold(h.pseudo(packet, len(b))+uint32(sum(b))) == 0xffff
}

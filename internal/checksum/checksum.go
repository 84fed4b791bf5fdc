package checksum

import (
	"encoding/binary"
	"math/bits"
)

// Sum returns the ones' complement sum of b (RFC 1071 §2). It adds 64 bits at a time in
// little-endian order, and swaps the bytes of the result (the sum of byte-swapped words is the
// byte-swapped sum). An odd length counts as if a zero byte followed.
func Sum(b []byte) uint16 {
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
	s = s>>32 + s&0xffffffff
	if len(b) >= 4 {
		s += uint64(binary.LittleEndian.Uint32(b))
		b = b[4:]
	}
	if len(b) >= 2 {
		s += uint64(binary.LittleEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) > 0 {
		s += uint64(b[0])
	}
	s = s>>32 + s&0xffffffff
	s = s>>32 + s&0xffffffff
	return bits.ReverseBytes16(Fold(uint32(s>>16) + uint32(s&0xffff)))
}

// Fold reduces a sum to 16 bits, in ones' complement.
func Fold(s uint32) uint16 {
	s = s>>16 + s&0xffff
	return uint16(s>>16 + s)
}

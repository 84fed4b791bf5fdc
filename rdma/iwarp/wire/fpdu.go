package wire

import (
	"encoding/binary"
	"hash/crc32"
)

// Lengths of an FPDU's parts in bytes.
const (
	FPDUHeaderLen = 2
	CRCLen        = 4
	// MaxULPDU is the longest ULPDU that an FPDU without markers can have.
	MaxULPDU = 1<<16 - 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// FPDULen returns the length of an FPDU without markers whose ULPDU has n bytes.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------------------------------+-------------------------------+
//	|         ULPDU_Length          |             ULPDU             |
//	+-------------------------------+                               |
//	|                                               +---------------+
//	|                                               |  pad (0 to 3) |
//	+-----------------------------------------------+---------------+
//	|                              CRC                              |
//	+---------------------------------------------------------------+
func FPDULen(n int) int { return (FPDUHeaderLen+n+3)&^3 + CRCLen }

// MULPDU returns the longest ULPDU whose FPDU fits into a TCP segment of mss bytes, wherever its
// markers are (RFC 5044 §4.5); 0 if none does.
func MULPDU(mss int, markers bool) int {
	n, most := mss-mss%4-FPDUHeaderLen-CRCLen, MaxULPDU
	if markers {
		n, most = n-MarkerLen*((mss+MarkerInterval-1)/MarkerInterval), MaxMarkedULPDU
	}
	return max(0, min(n, most))
}

// PutFPDU completes an FPDU without markers: b has FPDULen(n) bytes, its ULPDU of n bytes begins
// behind FPDUHeaderLen. Without CRC the field is sent as zero.
func PutFPDU(b []byte, n int, crc bool) {
	binary.BigEndian.PutUint16(b, uint16(n))
	end := len(b) - CRCLen
	clear(b[FPDUHeaderLen+n : end])
	sum := uint32(0)
	if crc {
		sum = crc32.Checksum(b[:end], castagnoli)
	}
	binary.LittleEndian.PutUint32(b[end:], sum)
}

// ParseFPDU returns the ULPDU of the FPDU without markers at the start of b, and the length of that
// FPDU. The error is ErrIncomplete or, if both ends agreed on CRCs, CRCMismatch.
func ParseFPDU(b []byte, crc bool) (ulpdu []byte, n int, err error) {
	if len(b) < FPDUHeaderLen {
		return nil, 0, ErrIncomplete
	}
	end := FPDUHeaderLen + int(binary.BigEndian.Uint16(b))
	if n = FPDULen(end - FPDUHeaderLen); len(b) < n {
		return nil, 0, ErrIncomplete
	}
	if crc && !sealed(b[:n]) {
		return nil, 0, CRCMismatch
	}
	return b[FPDUHeaderLen:end:end], n, nil
}

// sealed reports whether an FPDU, which may have markers, ends with its CRC.
func sealed(fpdu []byte) bool {
	end := len(fpdu) - CRCLen
	return binary.LittleEndian.Uint32(fpdu[end:]) == crc32.Checksum(fpdu[:end], castagnoli)
}

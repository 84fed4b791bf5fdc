package wire

import (
	"encoding/binary"
	"hash/crc32"
)

// Markers are in the stream at fixed places, so that a receiver finds the beginning of an FPDU in
// segments that arrived out of order (RFC 5044 §4.2, §4.3). The first is in front of the first FPDU,
// each further one MarkerInterval bytes behind the beginning of the one before.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------------------------------+-------------------------------+
//	|           Reserved            |            FPDUPTR            |
//	+-------------------------------+-------------------------------+
//
// FPDUPTR is how far behind the ULPDU_Length field of its FPDU the marker is. A marker between two
// FPDUs belongs to the later one, and its FPDUPTR is 0. Markers do not count in ULPDU_Length. The CRC
// covers those that belong to its FPDU.
//
// The functions here are told where in the stream an FPDU begins, in bytes from the beginning of
// the first one. FPDUs with their markers are multiples of four bytes, and so is that place: no
// marker is in the ULPDU_Length field or in the CRC.
const (
	MarkerLen      = 4
	MarkerInterval = 512
	// MaxMarkedULPDU is the longest ULPDU all of whose markers have an FPDUPTR of 16 bits: its FPDU has
	// 128 times what is between two markers.
	MaxMarkedULPDU = 128*(MarkerInterval-MarkerLen) - FPDUHeaderLen - CRCLen - 2
)

// toMarker returns how many bytes are between a place in the stream and the next marker: 0 if it
// begins there.
func toMarker(pos uint64) int { return int(-pos % MarkerInterval) }

// MarkedFPDULen returns the length of an FPDU with markers that begins at pos and whose ULPDU has n
// bytes.
func MarkedFPDULen(n int, pos uint64) int {
	plain, first := FPDULen(n), toMarker(pos)
	if first >= plain {
		return plain
	}
	const between = MarkerInterval - MarkerLen
	return plain + MarkerLen*((plain-first+between-1)/between)
}

// AppendMarkedFPDU appends an FPDU with markers to b, which it begins at pos. The ULPDU has at most
// MaxMarkedULPDU bytes. Without CRC the field is sent as zero.
func AppendMarkedFPDU(b, ulpdu []byte, pos uint64, crc bool) []byte {
	start := len(b)
	m := marking{start: start, next: start + toMarker(pos)}
	if m.next == start {
		m.start += MarkerLen
	}
	b = m.append(b, []byte{byte(len(ulpdu) >> 8), byte(len(ulpdu))})
	b = m.append(b, ulpdu)
	var pad [3]byte
	b = m.append(b, pad[:-(FPDUHeaderLen+len(ulpdu))&3])
	sum := uint32(0)
	if crc {
		sum = crc32.Checksum(b[start:], castagnoli)
	}
	return binary.LittleEndian.AppendUint32(b, sum)
}

// marking is an FPDU that is being written.
type marking struct {
	start int // its ULPDU_Length field
	next  int // its next marker
}

// append appends data with the markers that are in front of it, in it and just behind it: a marker
// between the pad and the CRC is part of what the CRC covers.
func (m *marking) append(b, data []byte) []byte {
	for {
		n := min(len(data), m.next-len(b))
		b, data = append(b, data[:n]...), data[n:]
		if len(b) < m.next {
			return b
		}
		b = binary.BigEndian.AppendUint32(b, uint32(max(0, len(b)-m.start)))
		m.next += MarkerInterval
	}
}

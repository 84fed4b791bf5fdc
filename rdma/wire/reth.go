package wire

import "encoding/binary"

// RETHLen is the length of RETH in bytes.
const RETHLen = 16

// RETH is the RDMA extended transport header of READ and WRITE (RDMA over Falcon §8.3.1).
// Each WRITE segment carries its own: VA is where that segment goes and Length its bytes
// without padding, so that a segment can be placed whatever arrived before it.
type RETH struct {
	VA     uint64
	RKey   uint32
	Length uint32 // bytes
}

// Append encodes h behind b.
func (h *RETH) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, h.VA)
	b = binary.BigEndian.AppendUint32(b, h.RKey)
	return binary.BigEndian.AppendUint32(b, h.Length)
}

// ParseRETH decodes the header at the start of b, or returns ErrShort.
func ParseRETH(b []byte) (RETH, error) {
	if len(b) < RETHLen {
		return RETH{}, ErrShort
	}
	return RETH{
		VA:     binary.BigEndian.Uint64(b),
		RKey:   binary.BigEndian.Uint32(b[8:]),
		Length: binary.BigEndian.Uint32(b[12:]),
	}, nil
}

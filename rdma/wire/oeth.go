package wire

import "encoding/binary"

// OETHLen is the length of OETH in bytes.
const OETHLen = 4

// OETH is the offset extended transport header (RDMA over Falcon §8.3.3): where in the message
// the first data byte of a SEND packet belongs.
type OETH struct {
	Offset uint32 // bytes from the start of the message
}

// Append encodes h behind b.
func (h *OETH) Append(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, h.Offset)
}

// ParseOETH decodes the header at the start of b, or returns ErrShort.
func ParseOETH(b []byte) (OETH, error) {
	if len(b) < OETHLen {
		return OETH{}, ErrShort
	}
	return OETH{Offset: binary.BigEndian.Uint32(b)}, nil
}

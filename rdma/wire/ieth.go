package wire

import "encoding/binary"

// IETHLen is the length of IETH in bytes.
const IETHLen = 4

// IETH is the invalidate extended transport header (RDMA over Falcon §8.3.8).
type IETH struct {
	RKey uint32 // the receiver's key to invalidate
}

// Append encodes h behind b.
func (h *IETH) Append(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, h.RKey)
}

// ParseIETH decodes the header at the start of b, or returns ErrShort.
func ParseIETH(b []byte) (IETH, error) {
	if len(b) < IETHLen {
		return IETH{}, ErrShort
	}
	return IETH{RKey: binary.BigEndian.Uint32(b)}, nil
}

package wire

import "encoding/binary"

// ImmDtLen is the length of ImmDt in bytes.
const ImmDtLen = 4

// ImmDt is the immediate extended transport header (RDMA over Falcon §8.3.5).
type ImmDt struct {
	Data uint32 // handed to the receiver's completion unchanged
}

// Append encodes h behind b.
func (h *ImmDt) Append(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, h.Data)
}

// ParseImmDt decodes the header at the start of b, or returns ErrShort.
func ParseImmDt(b []byte) (ImmDt, error) {
	if len(b) < ImmDtLen {
		return ImmDt{}, ErrShort
	}
	return ImmDt{Data: binary.BigEndian.Uint32(b)}, nil
}

package wire

import "encoding/binary"

// ImmDtLen is the length of ImmDt in bytes.
const ImmDtLen = 4

// ImmDt is the immediate extended transport header (RDMA over Falcon §8.3.5, IBA §9.3.6). Its four
// bytes are no number of the network's: each is carried as the sender's work request has it, and
// work requests are little-endian.
type ImmDt struct {
	Data uint32 // as work requests and completions have it
}

// Append encodes h behind b.
func (h *ImmDt) Append(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(b, h.Data)
}

// ParseImmDt decodes the header at the start of b, or returns ErrShort.
func ParseImmDt(b []byte) (ImmDt, error) {
	if len(b) < ImmDtLen {
		return ImmDt{}, ErrShort
	}
	return ImmDt{Data: binary.LittleEndian.Uint32(b)}, nil
}

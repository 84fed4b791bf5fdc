package wire

import "encoding/binary"

// STETHLen is the length of STETH in bytes.
const STETHLen = 12

// STETH is the sink tag extended transport header (RDMA over Falcon §8.3.4): the initiator's
// buffer for the response. The target returns it unchanged.
type STETH struct {
	VA   uint64
	LKey uint32
}

// Append encodes h behind b.
func (h *STETH) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, h.VA)
	return binary.BigEndian.AppendUint32(b, h.LKey)
}

// ParseSTETH decodes the header at the start of b, or returns ErrShort.
func ParseSTETH(b []byte) (STETH, error) {
	if len(b) < STETHLen {
		return STETH{}, ErrShort
	}
	return STETH{VA: binary.BigEndian.Uint64(b), LKey: binary.BigEndian.Uint32(b[8:])}, nil
}

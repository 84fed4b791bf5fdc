package wire

import "encoding/binary"

// SETHLen is the length of SETH in bytes.
const SETHLen = 4

// SETH is the sequence number extended transport header (RDMA over Falcon §8.3.2). SENDs and
// WRITEs with immediate number their messages in one counter, READ and ATOMIC requests their
// packets in another; both start at 1.
type SETH struct {
	RMSN uint32 // request message sequence number
}

// Append encodes h behind b.
func (h *SETH) Append(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, h.RMSN)
}

// ParseSETH decodes the header at the start of b, or returns ErrShort.
func ParseSETH(b []byte) (SETH, error) {
	if len(b) < SETHLen {
		return SETH{}, ErrShort
	}
	return SETH{RMSN: binary.BigEndian.Uint32(b)}, nil
}

package wire

import "encoding/binary"

// DETHLen is the length of DETH in bytes.
const DETHLen = 8

// DETH is the datagram extended transport header (IBA §9.3.3).
type DETH struct {
	QKey     uint32
	SourceQP uint32 // 24 bits
}

// Append appends the encoded header to b.
func (h *DETH) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, h.QKey)
	return binary.BigEndian.AppendUint32(b, h.SourceQP&QPNMask)
}

// ParseDETH decodes the header at the start of b, or returns ErrShort.
func ParseDETH(b []byte) (DETH, error) {
	if len(b) < DETHLen {
		return DETH{}, ErrShort
	}
	return DETH{QKey: binary.BigEndian.Uint32(b), SourceQP: binary.BigEndian.Uint32(b[4:]) & QPNMask}, nil
}

package wire

import "encoding/binary"

// XRCETHLen is the length of XRCETH in bytes.
const XRCETHLen = 4

// Number24Shift places the 24-bit numbers of XRCETH and DETH in their words. The figures of
// RDMA over Falcon §8.3.9 and §8.3.10 left-align them (shift 8); InfiniBand, which the text
// calls the same format, right-aligns them (shift 0). Falcon follows the figures.
const Number24Shift = 8

// XRCETH is the XRC extended transport header (RDMA over Falcon §8.3.9). It follows RBTH
// directly in every XRC request.
type XRCETH struct {
	SRQ uint32 // 24 bits
}

// Append encodes h behind b.
func (h *XRCETH) Append(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, h.SRQ&QPNMask<<Number24Shift)
}

// ParseXRCETH decodes the header at the start of b, or returns ErrShort.
func ParseXRCETH(b []byte) (XRCETH, error) {
	if len(b) < XRCETHLen {
		return XRCETH{}, ErrShort
	}
	return XRCETH{SRQ: binary.BigEndian.Uint32(b) >> Number24Shift & QPNMask}, nil
}

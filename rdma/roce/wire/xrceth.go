package wire

import "encoding/binary"

// XRCETHLen is the length of XRCETH in bytes.
const XRCETHLen = 4

// XRCETH is the XRC extended transport header (IBA annex A14.3.2). It follows BTH in every XRC
// request.
type XRCETH struct {
	SRQ uint32 // 24 bits
}

// Append appends the encoded header to b.
func (h *XRCETH) Append(b []byte) []byte { return binary.BigEndian.AppendUint32(b, h.SRQ&QPNMask) }

// ParseXRCETH decodes the header at the start of b, or returns ErrShort.
func ParseXRCETH(b []byte) (XRCETH, error) {
	if len(b) < XRCETHLen {
		return XRCETH{}, ErrShort
	}
	return XRCETH{SRQ: binary.BigEndian.Uint32(b) & QPNMask}, nil
}

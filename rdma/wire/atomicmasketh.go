package wire

import "encoding/binary"

// AtomicMaskETHLen is the length of AtomicMaskETH in bytes.
const AtomicMaskETHLen = 16

// AtomicMaskETH holds the masks of a masked atomic (RFC 7306 §5.1), behind AtomicETH. RDMA over
// Falcon has no such operation; header and opcodes are an own choice (docs/wire.md).
type AtomicMaskETH struct {
	SwapAdd uint64 // CmpSwap: the bits to swap; FetchAdd: the most significant bit of each field
	Compare uint64 // CmpSwap: the bits to compare; FetchAdd: all ones
}

// Append encodes h behind b.
func (h *AtomicMaskETH) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, h.SwapAdd)
	return binary.BigEndian.AppendUint64(b, h.Compare)
}

// ParseAtomicMaskETH decodes the header at the start of b, or returns ErrShort.
func ParseAtomicMaskETH(b []byte) (AtomicMaskETH, error) {
	if len(b) < AtomicMaskETHLen {
		return AtomicMaskETH{}, ErrShort
	}
	return AtomicMaskETH{SwapAdd: binary.BigEndian.Uint64(b), Compare: binary.BigEndian.Uint64(b[8:])}, nil
}

package wire

import "encoding/binary"

// AtomicETHLen is the length of AtomicETH in bytes.
const AtomicETHLen = 28

// AtomicETH is the extended transport header of atomic requests (RDMA over Falcon §8.3.6).
type AtomicETH struct {
	VA      uint64
	RKey    uint32
	SwapAdd uint64 // CmpSwap: the new value; FetchAdd: the addend
	Compare uint64 // CmpSwap only
}

// Append encodes h behind b.
func (h *AtomicETH) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, h.VA)
	b = binary.BigEndian.AppendUint32(b, h.RKey)
	b = binary.BigEndian.AppendUint64(b, h.SwapAdd)
	return binary.BigEndian.AppendUint64(b, h.Compare)
}

// ParseAtomicETH decodes the header at the start of b, or returns ErrShort.
func ParseAtomicETH(b []byte) (AtomicETH, error) {
	if len(b) < AtomicETHLen {
		return AtomicETH{}, ErrShort
	}
	return AtomicETH{
		VA:      binary.BigEndian.Uint64(b),
		RKey:    binary.BigEndian.Uint32(b[8:]),
		SwapAdd: binary.BigEndian.Uint64(b[12:]),
		Compare: binary.BigEndian.Uint64(b[20:]),
	}, nil
}

package wire

import "encoding/binary"

// AtomicAckETHLen is the length of AtomicAckETH in bytes.
const AtomicAckETHLen = 8

// AtomicAckETH is the extended transport header of atomic responses (RDMA over Falcon §8.3.7).
type AtomicAckETH struct {
	Original uint64 // the target's value before the operation
}

// Append encodes h behind b.
func (h *AtomicAckETH) Append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(b, h.Original)
}

// ParseAtomicAckETH decodes the header at the start of b, or returns ErrShort.
func ParseAtomicAckETH(b []byte) (AtomicAckETH, error) {
	if len(b) < AtomicAckETHLen {
		return AtomicAckETH{}, ErrShort
	}
	return AtomicAckETH{Original: binary.BigEndian.Uint64(b)}, nil
}

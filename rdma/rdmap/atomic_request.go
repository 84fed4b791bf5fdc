package rdmap

import (
	"encoding/binary"
	"fmt"
)

// AtomicRequestLen is the length of the segment of AtomicRequest in bytes.
const AtomicRequestLen = HeaderLen + 52

// AtomicOp is the 4-bit atomic operation code (RFC 7306 figure 5 and §10.1).
type AtomicOp uint8

// Atomic operations.
const (
	AtomicFetchAdd AtomicOp = 0
	AtomicCmpSwap  AtomicOp = 2
)

// String names the operation as RFC 7306 does.
func (op AtomicOp) String() string {
	switch op {
	case AtomicFetchAdd:
		return "FetchAdd"
	case AtomicCmpSwap:
		return "CmpSwap"
	}
	return fmt.Sprintf("atomic operation %d", uint8(op))
}

// AtomicRequest asks for an atomic operation on 64 bits at a 64-bit aligned address of the
// responder (RFC 7306 §5.2.1, A.1).
type AtomicRequest struct {
	MSN         uint32 // of the read request queue
	Op          AtomicOp
	ID          uint32 // returned in the response
	STag        uint32
	Offset      uint64 // tagged offset
	Data        uint64 // FetchAdd: the addend; CmpSwap: the new value
	Mask        uint64 // FetchAdd: most significant bit of every field; CmpSwap: the bits to swap
	Compare     uint64 // CmpSwap only
	CompareMask uint64 // CmpSwap only
}

// Append encodes m behind b. What an operation does not use is sent as §5.2.1 says: Compare as
// zero, CompareMask as all ones.
func (m *AtomicRequest) Append(b []byte) []byte {
	compare, compareMask := m.Compare, m.CompareMask
	if m.Op != AtomicCmpSwap {
		compare, compareMask = 0, ^uint64(0)
	}
	b = appendHeader(b, OpAtomicRequest, m.MSN)
	b = binary.BigEndian.AppendUint32(b, uint32(m.Op&opcodeMask))
	b = binary.BigEndian.AppendUint32(b, m.ID)
	b = binary.BigEndian.AppendUint32(b, m.STag)
	b = binary.BigEndian.AppendUint64(b, m.Offset)
	b = binary.BigEndian.AppendUint64(b, m.Data)
	b = binary.BigEndian.AppendUint64(b, m.Mask)
	b = binary.BigEndian.AppendUint64(b, compare)
	return binary.BigEndian.AppendUint64(b, compareMask)
}

// ParseAtomicRequest decodes the segment b. Errors are of type Terminate; an operation that is
// neither FetchAdd nor CmpSwap is ErrOpcode (RFC 7306 §1.1, §5.2.1). Fields the operation does not
// use are ignored and left zero.
func ParseAtomicRequest(b []byte) (AtomicRequest, error) {
	op, msn, err := ParseHeader(b)
	if err != nil {
		return AtomicRequest{}, err
	}
	if op != OpAtomicRequest {
		return AtomicRequest{}, ErrOpcode
	}
	b = b[HeaderLen:]
	m := AtomicRequest{
		MSN:    msn,
		Op:     AtomicOp(b[3] & opcodeMask),
		ID:     binary.BigEndian.Uint32(b[4:]),
		STag:   binary.BigEndian.Uint32(b[8:]),
		Offset: binary.BigEndian.Uint64(b[12:]),
		Data:   binary.BigEndian.Uint64(b[20:]),
		Mask:   binary.BigEndian.Uint64(b[28:]),
	}
	switch m.Op {
	case AtomicFetchAdd:
	case AtomicCmpSwap:
		m.Compare = binary.BigEndian.Uint64(b[36:])
		m.CompareMask = binary.BigEndian.Uint64(b[44:])
	default:
		return AtomicRequest{}, ErrOpcode
	}
	return m, nil
}

// Result is what the operation of a parsed request leaves in memory that held original.
func (m *AtomicRequest) Result(original uint64) uint64 {
	if m.Op == AtomicCmpSwap {
		return CmpSwap(original, m.Compare, m.CompareMask, m.Data, m.Mask)
	}
	return FetchAdd(original, m.Data, m.Mask)
}

// CheckAddress refuses an address that is not 64-bit aligned; memory is then not touched (RFC 7306
// §5.1, §8.2). The address is what STag and offset resolve to: the offset alone may be odd.
func CheckAddress(addr uint64) error {
	if addr%8 != 0 {
		return ErrAlignment
	}
	return nil
}

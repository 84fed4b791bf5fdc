package wire

import "encoding/binary"

// Lengths of the messages that are a header of RDMAP only, in bytes.
const (
	ReadRequestLen    = 28
	ImmediateLen      = 8
	AtomicRequestLen  = 52
	AtomicResponseLen = 12
)

// exactly returns the Cause if a message that is one header has another length than that. A longer
// one does not fit into the buffer that RDMAP has for it (RFC 5041 §7.1).
func exactly(b []byte, n int) error {
	switch {
	case len(b) < n:
		return LengthMismatch
	case len(b) > n:
		return MessageTooLong
	}
	return nil
}

// ReadRequest is the message of a READ Request (RFC 5040 §4.4).
//
//	+---------------------------------------------------------------+
//	|                       Data Sink STag                          |
//	+---------------------------------------------------------------+
//	|                  Data Sink Tagged Offset (64 bits)            |
//	+---------------------------------------------------------------+
//	|                     RDMA Read Message Size                    |
//	+---------------------------------------------------------------+
//	|                       Data Source STag                        |
//	+---------------------------------------------------------------+
//	|                 Data Source Tagged Offset (64 bits)           |
//	+---------------------------------------------------------------+
type ReadRequest struct {
	SinkSTag   uint32
	SinkTO     uint64
	Size       uint32 // bytes
	SourceSTag uint32
	SourceTO   uint64
}

// Append appends the encoded message to b.
func (r *ReadRequest) Append(b []byte) []byte {
	be := binary.BigEndian
	b = be.AppendUint32(b, r.SinkSTag)
	b = be.AppendUint64(b, r.SinkTO)
	b = be.AppendUint32(b, r.Size)
	b = be.AppendUint32(b, r.SourceSTag)
	return be.AppendUint64(b, r.SourceTO)
}

// ParseReadRequest decodes a message; the error is LengthMismatch or MessageTooLong.
func ParseReadRequest(b []byte) (ReadRequest, error) {
	if err := exactly(b, ReadRequestLen); err != nil {
		return ReadRequest{}, err
	}
	be := binary.BigEndian
	return ReadRequest{
		SinkSTag: be.Uint32(b), SinkTO: be.Uint64(b[4:]), Size: be.Uint32(b[12:]),
		SourceSTag: be.Uint32(b[16:]), SourceTO: be.Uint64(b[20:]),
	}, nil
}

// ParseImmediate returns the data of an Immediate Data message (RFC 7306 §6.2): eight bytes that are
// no number. The error is LengthMismatch or MessageTooLong.
func ParseImmediate(b []byte) ([ImmediateLen]byte, error) {
	if err := exactly(b, ImmediateLen); err != nil {
		return [ImmediateLen]byte{}, err
	}
	return [ImmediateLen]byte(b), nil
}

// AtomicOpcode says what an Atomic Request asks for (RFC 7306 figure 5).
type AtomicOpcode uint8

// Atomic operations.
const (
	FetchAdd AtomicOpcode = 0
	CmpSwap  AtomicOpcode = 2
)

// AtomicRequest is the message of an Atomic Request (RFC 7306 §5.2.1).
//
//	+-------------------------------------------------------+-------+
//	|                      Reserved                         |AOpCode|
//	+-------------------------------------------------------+-------+
//	|                      Request Identifier                       |
//	+---------------------------------------------------------------+
//	|                         Remote STag                           |
//	+---------------------------------------------------------------+
//	|                Remote Tagged Offset (64 bits)                 |
//	+---------------------------------------------------------------+
//	|                  Add or Swap Data (64 bits)                   |
//	+---------------------------------------------------------------+
//	|                  Add or Swap Mask (64 bits)                   |
//	+---------------------------------------------------------------+
//	|                    Compare Data (64 bits)                     |
//	+---------------------------------------------------------------+
//	|                    Compare Mask (64 bits)                     |
//	+---------------------------------------------------------------+
type AtomicRequest struct {
	Opcode      AtomicOpcode
	ID          uint32 // the response has it too
	STag        uint32
	TO          uint64
	AddSwap     uint64
	AddSwapMask uint64
	// Of CmpSwap. FetchAdd sends 0 and ones, and its receiver ignores them.
	Compare     uint64
	CompareMask uint64
}

// Append appends the encoded message to b.
func (a *AtomicRequest) Append(b []byte) []byte {
	be := binary.BigEndian
	compare, mask := a.Compare, a.CompareMask
	if a.Opcode == FetchAdd {
		compare, mask = 0, ^uint64(0)
	}
	b = be.AppendUint32(b, uint32(a.Opcode&0xf))
	b = be.AppendUint32(b, a.ID)
	b = be.AppendUint32(b, a.STag)
	b = be.AppendUint64(b, a.TO)
	b = be.AppendUint64(b, a.AddSwap)
	b = be.AppendUint64(b, a.AddSwapMask)
	b = be.AppendUint64(b, compare)
	return be.AppendUint64(b, mask)
}

// ParseAtomicRequest decodes a message; the error is LengthMismatch, MessageTooLong, or
// UnexpectedOpcode for an operation that is not known. Compare and CompareMask stay 0 for FetchAdd.
func ParseAtomicRequest(b []byte) (AtomicRequest, error) {
	if err := exactly(b, AtomicRequestLen); err != nil {
		return AtomicRequest{}, err
	}
	be := binary.BigEndian
	a := AtomicRequest{
		Opcode: AtomicOpcode(b[3] & 0xf), ID: be.Uint32(b[4:]), STag: be.Uint32(b[8:]), TO: be.Uint64(b[12:]),
		AddSwap: be.Uint64(b[20:]), AddSwapMask: be.Uint64(b[28:]),
	}
	switch a.Opcode {
	case FetchAdd:
	case CmpSwap:
		a.Compare, a.CompareMask = be.Uint64(b[36:]), be.Uint64(b[44:])
	default:
		return AtomicRequest{}, UnexpectedOpcode
	}
	return a, nil
}

// AtomicResponse is the message of an Atomic Response (RFC 7306 §5.2.2).
//
//	+---------------------------------------------------------------+
//	|                 Original Request Identifier                   |
//	+---------------------------------------------------------------+
//	|                Original Remote Value (64 bits)                |
//	+---------------------------------------------------------------+
type AtomicResponse struct {
	ID       uint32
	Original uint64
}

// Append appends the encoded message to b.
func (a *AtomicResponse) Append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(b, a.ID), a.Original)
}

// ParseAtomicResponse decodes a message; the error is LengthMismatch or MessageTooLong.
func ParseAtomicResponse(b []byte) (AtomicResponse, error) {
	if err := exactly(b, AtomicResponseLen); err != nil {
		return AtomicResponse{}, err
	}
	return AtomicResponse{ID: binary.BigEndian.Uint32(b), Original: binary.BigEndian.Uint64(b[4:])}, nil
}

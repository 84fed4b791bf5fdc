package rdmap

import "encoding/binary"

// AtomicResponseLen is the length of the segment of AtomicResponse in bytes.
const AtomicResponseLen = HeaderLen + 12

// AtomicResponse returns what the memory held before an atomic operation (RFC 7306 §5.2.2, A.2).
type AtomicResponse struct {
	MSN      uint32 // of the atomic response queue; finds the request at the requester
	ID       uint32 // of the request
	Original uint64
}

// Append encodes m behind b.
func (m *AtomicResponse) Append(b []byte) []byte {
	b = appendHeader(b, OpAtomicResponse, m.MSN)
	b = binary.BigEndian.AppendUint32(b, m.ID)
	return binary.BigEndian.AppendUint64(b, m.Original)
}

// ParseAtomicResponse decodes the segment b. Errors are of type Terminate.
func ParseAtomicResponse(b []byte) (AtomicResponse, error) {
	op, msn, err := ParseHeader(b)
	if err != nil {
		return AtomicResponse{}, err
	}
	if op != OpAtomicResponse {
		return AtomicResponse{}, ErrOpcode
	}
	return AtomicResponse{
		MSN:      msn,
		ID:       binary.BigEndian.Uint32(b[HeaderLen:]),
		Original: binary.BigEndian.Uint64(b[HeaderLen+4:]),
	}, nil
}

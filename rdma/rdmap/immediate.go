package rdmap

// ImmediateLen is the length of the segment of Immediate in bytes.
const ImmediateLen = HeaderLen + 8

// Immediate is Immediate Data or Immediate Data with Solicited Event (RFC 7306 §6, A.3).
type Immediate struct {
	MSN       uint32 // of the send queue
	Solicited bool   // with Solicited Event
	Data      [8]byte
}

// Append encodes m behind b.
func (m *Immediate) Append(b []byte) []byte {
	op := OpImmediate
	if m.Solicited {
		op = OpImmediateSE
	}
	return append(appendHeader(b, op, m.MSN), m.Data[:]...)
}

// ParseImmediate decodes the segment b. Errors are of type Terminate.
func ParseImmediate(b []byte) (Immediate, error) {
	op, msn, err := ParseHeader(b)
	if err != nil {
		return Immediate{}, err
	}
	if op != OpImmediate && op != OpImmediateSE {
		return Immediate{}, ErrOpcode
	}
	return Immediate{MSN: msn, Solicited: op == OpImmediateSE, Data: [8]byte(b[HeaderLen:])}, nil
}

package wire

import (
	"encoding/binary"
	"fmt"
)

// Cause is why a stream ends, as a Terminate message says it: the layer that found the error in the
// top four bits, the type of the error in the next four, its code in the low eight (RFC 5040 §4.8).
type Cause uint16

// Layers.
const (
	LayerRDMAP = 0
	LayerDDP   = 1
	LayerMPA   = 2
)

// Errors of RDMAP (RFC 5040 §4.8).
const (
	LocalCatastrophic Cause = 0x0000

	// Remote protection.
	InvalidSTag          Cause = 0x0100
	OutOfBounds          Cause = 0x0101
	AccessViolation      Cause = 0x0102
	STagOfAnotherStream  Cause = 0x0103
	TOWraps              Cause = 0x0104
	CannotInvalidate     Cause = 0x0109
	ProtectionUnspecific Cause = 0x01ff

	// Remote operation.
	InvalidVersion            Cause = 0x0205
	UnexpectedOpcode          Cause = 0x0206
	StreamCatastrophic        Cause = 0x0207
	GlobalCatastrophic        Cause = 0x0208
	OperationCannotInvalidate Cause = 0x0209
	OperationUnspecified      Cause = 0x02ff
)

// Errors of DDP (RFC 5041 §7.2).
const (
	DDPCatastrophic Cause = 0x1000

	// Tagged buffers.
	TaggedInvalidSTag         Cause = 0x1100
	TaggedOutOfBounds         Cause = 0x1101
	TaggedSTagOfAnotherStream Cause = 0x1102
	TaggedTOWraps             Cause = 0x1103
	TaggedVersion             Cause = 0x1104

	// Untagged buffers.
	InvalidQueue    Cause = 0x1201
	NoBuffer        Cause = 0x1202
	MSNOutOfRange   Cause = 0x1203
	InvalidOffset   Cause = 0x1204
	MessageTooLong  Cause = 0x1205
	UntaggedVersion Cause = 0x1206
)

// Errors of MPA (RFC 5044 §8, the last three RFC 6581 §8).
const (
	ConnectionLost Cause = 0x2001
	CRCMismatch    Cause = 0x2002
	// LengthMismatch also is what an FPDU too short for its headers is refused with, as Linux's siw does:
	// its ULPDU_Length cannot be right.
	LengthMismatch  Cause = 0x2003
	InvalidFrame    Cause = 0x2004
	MPACatastrophic Cause = 0x2005
	InsufficientIRD Cause = 0x2006
	NoCommonRTR     Cause = 0x2007
)

var causeNames = map[Cause]string{
	LocalCatastrophic: "RDMAP: local catastrophic error",
	InvalidSTag:       "RDMAP: invalid STag", OutOfBounds: "RDMAP: base or bounds violation",
	AccessViolation: "RDMAP: access rights violation", STagOfAnotherStream: "RDMAP: STag not associated with the stream",
	TOWraps: "RDMAP: tagged offset wraps", CannotInvalidate: "RDMAP: STag cannot be invalidated",
	ProtectionUnspecific: "RDMAP: unspecified protection error",
	InvalidVersion:       "RDMAP: invalid version", UnexpectedOpcode: "RDMAP: unexpected opcode",
	StreamCatastrophic: "RDMAP: catastrophic error of the stream", GlobalCatastrophic: "RDMAP: catastrophic error of the RNIC",
	OperationCannotInvalidate: "RDMAP: operation cannot invalidate the STag", OperationUnspecified: "RDMAP: unspecified operation error",
	DDPCatastrophic:   "DDP: local catastrophic error",
	TaggedInvalidSTag: "DDP: invalid STag", TaggedOutOfBounds: "DDP: base or bounds violation",
	TaggedSTagOfAnotherStream: "DDP: STag not associated with the stream", TaggedTOWraps: "DDP: tagged offset wraps",
	TaggedVersion: "DDP: invalid version of a tagged segment",
	InvalidQueue:  "DDP: invalid queue number", NoBuffer: "DDP: no buffer for the message",
	MSNOutOfRange: "DDP: message sequence number out of range", InvalidOffset: "DDP: invalid message offset",
	MessageTooLong: "DDP: message too long for its buffer", UntaggedVersion: "DDP: invalid version of an untagged segment",
	ConnectionLost: "MPA: TCP connection lost", CRCMismatch: "MPA: CRC mismatch",
	LengthMismatch: "MPA: length does not match markers or headers", InvalidFrame: "MPA: invalid request or reply frame",
	MPACatastrophic: "MPA: local catastrophic error", InsufficientIRD: "MPA: insufficient IRD", NoCommonRTR: "MPA: no matching RTR",
}

// Layer returns the layer that found the error.
func (c Cause) Layer() uint8 { return uint8(c >> 12) }

// Error names the cause. One that is in no table comes from the peer and is given by its numbers.
func (c Cause) Error() string {
	if name, ok := causeNames[c]; ok {
		return name
	}
	return fmt.Sprintf("layer %d, type %d, code %#02x", c>>12, c>>8&0xf, uint8(c))
}

// MaxTerminateLen is the longest Terminate message in bytes: with the header of a READ Request.
const MaxTerminateLen = terminateLen + segmentLen + UntaggedLen + ReadRequestLen

const (
	terminateLen = 4
	segmentLen   = 2
)

// HdrCt, the bits that say what follows.
const (
	hdrLength = 0x80 // M
	hdrDDP    = 0x40 // D
	hdrRDMAP  = 0x20 // R
)

// Terminate is the message that ends a stream (RFC 5040 §4.8).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------+-------+---------------+-+-+-+-------------------------+
//	| Layer | EType |  Error Code   |M|D|R|        Reserved         |
//	+-------+-------+---------------+-+-+-+-------------------------+
//	|  DDP Segment Length (if any)  |  Terminated DDP header        |
//	+-------------------------------+    (if any, 14 or 18 bytes)   |
//	|                                                               |
//	+---------------------------------------------------------------+
//	|            Terminated RDMAP header (if any, 28 bytes)         |
//	+---------------------------------------------------------------+
//
// The headers are those of the segment in which the error was found, byte for byte: nothing in them
// is checked.
type Terminate struct {
	Cause Cause
	// DDP is the header of the segment: TaggedLen or UntaggedLen bytes, by its first bit, or none.
	DDP []byte
	// LengthValid and Length tell how long the segment was; only with DDP.
	LengthValid bool
	Length      uint16
	// ReadRequest is the message of a READ Request, ReadRequestLen bytes, or none; only with the DDP
	// header of one.
	ReadRequest []byte
}

// headerLen returns the length of a DDP header by its first byte.
func headerLen(control byte) int {
	if control&bitTagged != 0 {
		return TaggedLen
	}
	return UntaggedLen
}

// isReadRequest reports whether a DDP header is that of a READ Request.
func isReadRequest(ddp []byte) bool {
	return ddp[0]&bitTagged == 0 && Opcode(ddp[1]&0xf) == OpReadRequest
}

// SetSegment sets the headers to those of a segment, as far as it has them. RDMAP's is told with an
// error of RDMAP only.
func (t *Terminate) SetSegment(ulpdu []byte) {
	if len(ulpdu) == 0 || len(ulpdu) < headerLen(ulpdu[0]) {
		return
	}
	n := headerLen(ulpdu[0])
	t.DDP, t.LengthValid, t.Length = ulpdu[:n:n], true, uint16(len(ulpdu))
	if t.Cause.Layer() == LayerRDMAP && isReadRequest(t.DDP) && len(ulpdu) >= n+ReadRequestLen {
		t.ReadRequest = ulpdu[n:][:ReadRequestLen:ReadRequestLen]
	}
}

// Append appends the encoded message to b.
func (t *Terminate) Append(b []byte) []byte {
	control := byte(0)
	if len(t.DDP) != 0 {
		control = hdrDDP | flag(t.LengthValid, hdrLength) | flag(len(t.ReadRequest) != 0, hdrRDMAP)
	}
	b = binary.BigEndian.AppendUint16(b, uint16(t.Cause))
	b = append(b, control, 0)
	if control&hdrDDP != 0 {
		length := uint16(0)
		if t.LengthValid {
			length = t.Length
		}
		b = binary.BigEndian.AppendUint16(b, length)
		b = append(append(b, t.DDP...), t.ReadRequest...)
	}
	return b
}

// ParseTerminate decodes a message. Headers that the message says it has and has not in full are
// LengthMismatch; t.Cause is valid even then if the message has four bytes. R with another header
// than that of a READ Request, which some send, says nothing.
func ParseTerminate(b []byte) (t Terminate, err error) {
	if len(b) < terminateLen {
		return Terminate{}, LengthMismatch
	}
	t.Cause = Cause(binary.BigEndian.Uint16(b))
	control := b[2]
	if control&hdrDDP == 0 {
		return t, nil
	}
	b = b[terminateLen:]
	if len(b) <= segmentLen || len(b) < segmentLen+headerLen(b[segmentLen]) {
		return t, LengthMismatch
	}
	ddp, rest := b[segmentLen:segmentLen+headerLen(b[segmentLen])], b[segmentLen+headerLen(b[segmentLen]):]
	if control&hdrRDMAP != 0 && isReadRequest(ddp) {
		if len(rest) < ReadRequestLen {
			return t, LengthMismatch
		}
		t.ReadRequest = rest[:ReadRequestLen:ReadRequestLen]
	}
	t.DDP = ddp
	if t.LengthValid = control&hdrLength != 0; t.LengthValid {
		t.Length = binary.BigEndian.Uint16(b)
	}
	return t, nil
}

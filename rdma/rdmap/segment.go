package rdmap

import "encoding/binary"

// HeaderLen is the length of the DDP untagged header with the RDMAP control field in bytes.
const HeaderLen = 18

// Versions of the protocols.
const (
	DDPVersion   = 1 // RFC 5041 §4.1
	RDMAPVersion = 1 // RFC 7306 §4.1
)

// The DDP control byte is T 1 | L 1 | reserved 4 | DV 2, the RDMAP control byte RV 2 | reserved 2 |
// opcode 4 (RFC 7306 figure 1).
const (
	tagged      = 1 << 7
	last        = 1 << 6
	versionMask = 3
	rdmapShift  = 6
	opcodeMask  = 15
)

// appendHeader encodes the header of a message of one segment behind b: every message of RFC 7306
// is a single untagged segment at offset 0, as it is much shorter than the smallest segment of a
// stream.
func appendHeader(b []byte, op Opcode, msn uint32) []byte {
	b = append(b, last|DDPVersion, RDMAPVersion<<rdmapShift|byte(op))
	b = binary.BigEndian.AppendUint32(b, 0) // Invalidate STag, not used
	b = binary.BigEndian.AppendUint32(b, uint32(op.Queue()))
	b = binary.BigEndian.AppendUint32(b, msn)
	return binary.BigEndian.AppendUint32(b, 0) // Message Offset
}

// ParseHeader checks the DDP and RDMAP fields of a segment (RFC 7306 §8.2) and returns its opcode
// and message sequence number. The length is checked too: none of the messages carries more than
// its header. Errors are of type Terminate. Reserved bits and Invalidate STag are ignored.
func ParseHeader(b []byte) (op Opcode, msn uint32, err error) {
	if len(b) < HeaderLen {
		return 0, 0, ErrLength
	}
	// DDP first: it is the lower layer.
	ddp, rdmap := b[0], b[1]
	queue, offset := binary.BigEndian.Uint32(b[6:]), binary.BigEndian.Uint32(b[14:])
	op = Opcode(rdmap & opcodeMask)
	switch {
	case ddp&tagged != 0 && ddp&versionMask != DDPVersion:
		return 0, 0, ErrTaggedVersion
	case ddp&tagged != 0: // of RFC 5040, no message of RFC 7306
		return 0, 0, ErrOpcode
	case ddp&versionMask != DDPVersion:
		return 0, 0, ErrDDPVersion
	case queue > uint32(QueueAtomicResponse):
		return 0, 0, ErrQueue
	case offset != 0:
		return 0, 0, ErrOffset
	case rdmap>>rdmapShift != RDMAPVersion:
		return 0, 0, ErrRDMAPVersion
	case !op.Valid() || queue != uint32(op.Queue()):
		return 0, 0, ErrOpcode
	case ddp&last == 0 || len(b) != op.Len():
		return 0, 0, ErrLength
	}
	return op, binary.BigEndian.Uint32(b[10:]), nil
}

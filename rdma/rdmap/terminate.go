package rdmap

import "fmt"

// Terminate is what a Terminate Message says about an error: the layer that found it, its type and
// its code (RFC 5040 §4.8, RFC 5041 §8.1; numbers in the RDDP registry of IANA). It is the error of
// all Parse functions.
type Terminate struct {
	Layer Layer
	Type  ErrorType
	Code  uint8
}

// Layer is the layer that found an error.
type Layer uint8

// Layers.
const (
	LayerRDMAP Layer = 0
	LayerDDP   Layer = 1
)

// ErrorType is the type of an error, by layer.
type ErrorType uint8

// Types of errors.
const (
	RemoteOperation ErrorType = 2 // LayerRDMAP
	TaggedBuffer    ErrorType = 1 // LayerDDP
	UntaggedBuffer  ErrorType = 2 // LayerDDP
)

// Errors a segment or its address is refused with (RFC 7306 §8.2).
var (
	// ErrRDMAPVersion: the RDMA Version is not 1.
	ErrRDMAPVersion error = Terminate{LayerRDMAP, RemoteOperation, 0x05}
	// ErrOpcode: the opcode is not of RFC 7306, comes on the wrong queue or on a tagged buffer, or
	// is not the one asked for; or the atomic operation is unknown.
	ErrOpcode error = Terminate{LayerRDMAP, RemoteOperation, 0x06}
	// ErrAlignment: the target of an atomic is not 64-bit aligned.
	ErrAlignment error = Terminate{LayerRDMAP, RemoteOperation, 0x07}
	// ErrLength: the segment is not exactly its message. The RFCs have no code of its own for it.
	ErrLength error = Terminate{LayerRDMAP, RemoteOperation, 0xff}
	// ErrTaggedVersion: the DDP version of a tagged segment is not 1.
	ErrTaggedVersion error = Terminate{LayerDDP, TaggedBuffer, 0x04}
	// ErrQueue: there is no such untagged queue.
	ErrQueue error = Terminate{LayerDDP, UntaggedBuffer, 0x01}
	// ErrNoBuffer: no buffer waits for the MSN. For callers, who count them.
	ErrNoBuffer error = Terminate{LayerDDP, UntaggedBuffer, 0x02}
	// ErrMSN: the MSN is out of range. For callers, who know the range.
	ErrMSN error = Terminate{LayerDDP, UntaggedBuffer, 0x03}
	// ErrOffset: the message offset is not 0.
	ErrOffset error = Terminate{LayerDDP, UntaggedBuffer, 0x04}
	// ErrDDPVersion: the DDP version of an untagged segment is not 1.
	ErrDDPVersion error = Terminate{LayerDDP, UntaggedBuffer, 0x06}
)

// Control is the first word of the Terminate header: layer 4 | type 4 | code 8 | M 1 | D 1 | R 1 |
// reserved 13. segment says that length and DDP header of the refused segment follow (M and D); the
// RDMA header of the messages of RFC 7306 never does (§8.1).
func (t Terminate) Control(segment bool) uint32 {
	w := uint32(t.Layer&15)<<28 | uint32(t.Type&15)<<24 | uint32(t.Code)<<16
	if segment {
		w |= 3 << 14
	}
	return w
}

// ParseTerminate decodes the first word of a Terminate header.
func ParseTerminate(control uint32) Terminate {
	return Terminate{Layer(control >> 28), ErrorType(control >> 24 & 15), uint8(control >> 16)}
}

// Error names the error as the registry does.
func (t Terminate) Error() string {
	switch error(t) {
	case ErrRDMAPVersion:
		return "rdmap: invalid RDMAP version"
	case ErrOpcode:
		return "rdmap: unexpected opcode"
	case ErrAlignment:
		return "rdmap: catastrophic error, localized to RDMAP stream (atomic on an address that is not 64-bit aligned)"
	case ErrLength:
		return "rdmap: unspecified error (segment is not exactly its message)"
	case ErrTaggedVersion, ErrDDPVersion:
		return "rdmap: invalid DDP version"
	case ErrQueue:
		return "rdmap: invalid queue number"
	case ErrNoBuffer:
		return "rdmap: invalid MSN, no buffer available"
	case ErrMSN:
		return "rdmap: invalid MSN, out of range"
	case ErrOffset:
		return "rdmap: invalid message offset"
	}
	return fmt.Sprintf("rdmap: layer %d, error type %d, code %#02x", t.Layer, t.Type, t.Code)
}

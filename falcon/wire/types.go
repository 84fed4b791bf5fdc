package wire

import "strconv"

// Version is the only version of the Falcon header (Falcon §7.2).
const Version = 1

// Sizes of the formats, in bytes.
const (
	BaseLen        = 24
	PullRequestLen = 32
	PullDataLen    = 24
	PushDataLen    = 28
	ResyncLen      = 32
	BACKLen        = 32
	EACKLen        = 72
	NACKLen        = 40
	MaxHeaderLen   = EACKLen // no header of any packet is longer
)

// Sizes of the receive windows in packets (Falcon §9).
const (
	RequestWindow = 64
	DataWindow    = 128
)

// MaxCID and MaxFunction are the largest values of the 24-bit fields.
const (
	MaxCID      = 1<<24 - 1
	MaxFunction = 1<<24 - 1
)

// PacketType is the 4-bit packet type (Falcon §7.2). Values not named here are reserved.
type PacketType uint8

// Packet types.
const (
	TypePullRequest PacketType = 0
	TypePullData    PacketType = 3
	TypePushData    PacketType = 5
	TypeResync      PacketType = 6
	TypeNACK        PacketType = 8
	TypeBACK        PacketType = 9
	TypeEACK        PacketType = 10
)

// String returns the name of the specification.
func (t PacketType) String() string {
	switch t {
	case TypePullRequest:
		return "PullRequest"
	case TypePullData:
		return "PullData"
	case TypePushData:
		return "PushData"
	case TypeResync:
		return "Resync"
	case TypeNACK:
		return "NACK"
	case TypeBACK:
		return "BACK"
	case TypeEACK:
		return "EACK"
	}
	return "reserved type " + strconv.Itoa(int(t))
}

// Valid reports whether the type is not reserved.
func (t PacketType) Valid() bool {
	switch t {
	case TypePullRequest, TypePullData, TypePushData, TypeResync, TypeNACK, TypeBACK, TypeEACK:
		return true
	}
	return false
}

// HasBase reports whether packets of the type start with the base header: all but acknowledgements.
func (t PacketType) HasBase() bool { return t.Valid() && t < TypeNACK }

// Protocol is the 3-bit upper layer protocol (Falcon §7.2).
type Protocol uint8

// Protocols; the other values are reserved.
const (
	ProtocolRDMA Protocol = 2
	ProtocolNVMe Protocol = 3
)

// String names the protocol.
func (p Protocol) String() string {
	switch p {
	case ProtocolRDMA:
		return "RDMA"
	case ProtocolNVMe:
		return "NVMe"
	}
	return "reserved protocol " + strconv.Itoa(int(p))
}

// Valid reports whether the protocol is not reserved.
func (p Protocol) Valid() bool { return p == ProtocolRDMA || p == ProtocolNVMe }

// NackCode says why a packet is not acknowledged (Falcon §7.8). Values not named here are reserved.
type NackCode uint8

// NACK codes.
const (
	NackResource NackCode = 1 // dropped for lack of receiver resources
	NackRNR      NackCode = 2 // ULP receiver not ready
	NackXLR      NackCode = 4 // xLR drop
	NackCIE      NackCode = 6 // ULP complete in error
	NackNRE      NackCode = 7 // ULP non-recoverable error
	NackCID      NackCode = 8 // invalid CID

	NackCodes = 9 // one more than the highest
)

// String returns the name of the specification.
func (c NackCode) String() string {
	switch c {
	case NackResource:
		return "resource drop"
	case NackRNR:
		return "receiver not ready"
	case NackXLR:
		return "xLR drop"
	case NackCIE:
		return "complete in error"
	case NackNRE:
		return "non-recoverable error"
	case NackCID:
		return "invalid CID"
	}
	return "reserved NACK code " + strconv.Itoa(int(c))
}

// Valid reports whether the code is not reserved.
func (c NackCode) Valid() bool {
	switch c {
	case NackResource, NackRNR, NackXLR, NackCIE, NackNRE, NackCID:
		return true
	}
	return false
}

// ResyncCode is the reason of a Resync packet (Falcon §7.6). Values not named here are reserved.
type ResyncCode uint8

// Resync codes.
const (
	ResyncCIE        ResyncCode = 1 // target ULP complete in error
	ResyncLocalXLR   ResyncCode = 2 // local xLR flow
	ResyncRetransmit ResyncCode = 3 // retransmissions exhausted
	ResyncTimeout    ResyncCode = 4 // transaction timed out
	ResyncRemoteXLR  ResyncCode = 5 // remote xLR flow
	ResyncNRE        ResyncCode = 6 // target ULP non-recoverable error
	ResyncCID        ResyncCode = 7 // target ULP invalid CID
)

// String returns the name of the specification.
func (c ResyncCode) String() string {
	switch c {
	case ResyncCIE:
		return "complete in error"
	case ResyncLocalXLR:
		return "local xLR"
	case ResyncRetransmit:
		return "retransmissions exhausted"
	case ResyncTimeout:
		return "transaction timed out"
	case ResyncRemoteXLR:
		return "remote xLR"
	case ResyncNRE:
		return "non-recoverable error"
	case ResyncCID:
		return "invalid CID"
	}
	return "reserved Resync code " + strconv.Itoa(int(c))
}

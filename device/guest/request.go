package guest

import "github.com/falcon-vnic/vnic/queues/abi"

// RequestKind is the kind of a Request.
type RequestKind uint8

// Kinds of requests.
const (
	Ring RequestKind = iota
	RegRead
	RegWrite
	ReservedBits // strict only: a message whose header has reserved bytes that are not zero
)

// Request is one request of a driver to its function.
type Request struct {
	Kind     RequestKind
	Doorbell abi.Doorbell
	Tag      uint64
	Offset   uint32
	Width    uint32
	Value    uint64
	Dirty    *[abi.DoorbellSize]byte // strict only: the record or header, if its reserved bytes are not zero
}

// DirtyDoorbell returns the bytes of a record whose reserved bytes are not zero, else nil.
func DirtyDoorbell(record []byte) *[abi.DoorbellSize]byte {
	if !(*abi.Doorbell)(nil).Reserved(record) {
		return nil
	}
	raw := [abi.DoorbellSize]byte(record)
	return &raw
}

package guest

import "github.com/falcon-vnic/vnic/queues/abi"

// RequestKind says what a driver asks.
type RequestKind uint8

// What a driver asks of its function.
const (
	Ring RequestKind = iota
	RegRead
	RegWrite
	ReservedBits // strict: a message with something in its header's reserved bytes
)

// Request is one thing that a driver asks of its function.
type Request struct {
	Kind     RequestKind
	Doorbell abi.Doorbell
	Tag      uint64
	Offset   uint32
	Width    uint32
	Value    uint64
	Dirty    *[abi.DoorbellSize]byte // strict: the record or header, when its reserved bytes are not zero
}

// DirtyDoorbell returns a record that has something in its reserved bytes, else nil.
func DirtyDoorbell(record []byte) *[abi.DoorbellSize]byte {
	if !(*abi.Doorbell)(nil).Reserved(record) {
		return nil
	}
	raw := [abi.DoorbellSize]byte(record)
	return &raw
}

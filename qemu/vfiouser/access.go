package vfiouser

import (
	"encoding/binary"
	"fmt"
)

const accessSize = 16

// Access is the body of REGION_READ and REGION_WRITE, and of their replies. In a write and in the
// reply to a read, Count bytes of data follow it.
type Access struct {
	Offset        uint64 // bytes into the region
	Region, Count uint32
}

// Append appends the message's body without the data.
func (a *Access) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, a.Offset)
	b = binary.LittleEndian.AppendUint32(b, a.Region)
	return binary.LittleEndian.AppendUint32(b, a.Count)
}

// ParseAccess parses the body of REGION_READ or REGION_WRITE and returns the data that follows it.
func ParseAccess(b []byte) (a Access, data []byte, err error) {
	if len(b) < accessSize {
		return a, nil, short("region access", b, accessSize)
	}
	le := binary.LittleEndian
	a = Access{le.Uint64(b), le.Uint32(b[8:]), le.Uint32(b[12:])}
	if a.Count > MaxTransfer {
		return a, nil, fmt.Errorf("vfio-user region access: %d bytes at once, the limit is %d", a.Count, MaxTransfer)
	}
	return a, b[accessSize:], nil
}

package verbs

import (
	"encoding/binary"
	"errors"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// area copies a page list and returns the length bytes that begin at its first page. The status is
// that of the command that named the list.
func (o *Owner) area(root uint64, levels uint8, length uint64) (*queues.Area, abi.Status) {
	a, err := queues.ReadArea(o.mem, root, int(levels), 0, length)
	if err != nil {
		return nil, o.areaStatus(err, root)
	}
	return a, abi.StatusOK
}

// areaStatus is the status of a command whose page list is bad.
func (o *Owner) areaStatus(err error, root uint64) abi.Status {
	if fault := (*queues.FaultError)(nil); errors.As(err, &fault) {
		return abi.StatusMemoryFault
	}
	o.Broke(abi.DRV403, abi.RingAdmin, 0, 0, binary.LittleEndian.AppendUint64(nil, root))
	return abi.StatusInvalidArgument
}

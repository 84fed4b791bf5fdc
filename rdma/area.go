package rdma

import (
	"encoding/binary"
	"errors"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// area copies a page list and returns the length bytes that begin offset bytes into its first page.
// The status is that of the command that named the list.
func (f *Function) area(root uint64, levels uint8, offset uint32, length uint64) (*queues.Area, abi.Status) {
	a, err := queues.ReadArea(f.mem, root, int(levels), offset, length)
	if err != nil {
		return nil, f.areaStatus(err, root)
	}
	return a, abi.StatusOK
}

// areaStatus is the status of a command whose page list is bad.
func (f *Function) areaStatus(err error, root uint64) abi.Status {
	if fault := (*queues.FaultError)(nil); errors.As(err, &fault) {
		return abi.StatusMemoryFault
	}
	f.broke(abi.DRV403, abi.RingAdmin, 0, 0, binary.LittleEndian.AppendUint64(nil, root))
	return abi.StatusInvalidArgument
}

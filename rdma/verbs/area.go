package verbs

import (
	"encoding/binary"
	"errors"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// area copies a page list and returns the length bytes that begin at its first page. On failure it
// returns the status for the command that named the list.
func (o *Owner) area(root uint64, levels uint8, length uint64) (*queues.Area, abi.Status) {
	a, err := queues.ReadArea(o.mem, root, int(levels), queues.Span{Length: length})
	if err != nil {
		return nil, o.areaStatus(err)
	}
	return a, abi.StatusOK
}

// areaStatus reports a bad page list as a violation, with the bad address if there is one, and
// returns the status for the command.
func (o *Owner) areaStatus(err error) abi.Status {
	if fault := (*queues.FaultError)(nil); errors.As(err, &fault) {
		o.Broke(abi.DRV401, abi.RingAdmin, 0, 0, binary.LittleEndian.AppendUint64(nil, fault.Addr))
		return abi.StatusMemoryFault
	}
	var address []byte
	if bad := (*queues.PageListError)(nil); errors.As(err, &bad) {
		address = binary.LittleEndian.AppendUint64(nil, bad.Addr)
	}
	o.Broke(abi.DRV403, abi.RingAdmin, 0, 0, address)
	return abi.StatusInvalidArgument
}

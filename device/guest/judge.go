package guest

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// judge records the rules that a driver broke.
type judge interface {
	Broke(clause abi.Clause, where abi.Ring, queue, index uint32, b []byte)
}

// judgeRegister records the rules that a register access broke.
func judgeRegister(to judge, it *Request, st abi.Status, before abi.State) {
	var b []byte
	if it.Kind == RegWrite {
		b = binary.LittleEndian.AppendUint64(nil, it.Value)
	}
	r := abi.LookupRegister(it.Offset)
	switch write := it.Kind == RegWrite; {
	case r == nil || r.Width != it.Width, write && !r.Writable, !write && !r.Readable:
		to.Broke(abi.DRV306, abi.RingRegister, 0, it.Offset, b)
	case write && it.Width == 4 && it.Value>>32 != 0:
		to.Broke(abi.DRV102, abi.RingRegister, 0, it.Offset, b)
	case write && st == abi.StatusBadState && before == abi.StateError && it.Offset == abi.RegControl:
		to.Broke(abi.DRV304, abi.RingRegister, 0, it.Offset, b)
	case write && st == abi.StatusBadState && it.Offset != abi.RegControl:
		to.Broke(abi.DRV301, abi.RingRegister, 0, it.Offset, b)
	case write && st == abi.StatusMemoryFault:
		to.Broke(abi.DRV401, abi.RingRegister, 0, it.Offset, b)
	}
}

// judgeArea reads the area of an admin queue at ControlEnable. The area must be readable and zero;
// with strict, a byte that is not zero is recorded as a violation.
func judgeArea(to judge, area *queues.Area, strict bool) error {
	b := make([]byte, area.Len())
	if err := area.ReadAt(0, b); err != nil {
		return err
	}
	for i, v := range b {
		if v != 0 && strict {
			to.Broke(abi.DRV301, abi.RingAdmin, 0, uint32(i), b[i&^7:])
			return nil
		}
	}
	return nil
}

// judgeDoorbell records a doorbell message that came although the driver uses its ring, and
// reserved bytes that are not zero.
func judgeDoorbell(to judge, rang bool, d *abi.Doorbell, raw *[abi.DoorbellSize]byte) {
	if rang {
		var is [abi.DoorbellSize]byte
		d.Marshal(is[:])
		to.Broke(abi.DRV1004, abi.RingStream, d.Queue, d.Index, is[:])
	}
	if raw != nil {
		to.Broke(abi.DRV102, abi.RingStream, d.Queue, d.Index, raw[:])
	}
}

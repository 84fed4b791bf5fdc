package verbs

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// UseStrict switches on checks that do not protect the device but tell a driver what it does wrong,
// such as bytes and areas that must be zero.
func (o *Owner) UseStrict(on bool) { o.strict = on }

// Strict reports whether these checks are on.
func (o *Owner) Strict() bool { return o.strict }

// Broke reports that the driver broke a clause of docs/abi: which one, where, and the bytes that
// show it.
func (o *Owner) Broke(clause abi.Clause, where abi.Ring, number, index uint32, b []byte) {
	v := &abi.Violation{Clause: uint16(clause), Ring: where, Queue: number, Index: index}
	v.Length = uint8(copy(v.Bytes[:], b))
	o.out.Violation(v)
}

// word returns v as four bytes for a report.
func word(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }

// strictArea limits how much of an area that must be zero is checked.
const strictArea = 64 << 10

// zero checks that the first length bytes of an area are zero, and reports the first ones that are
// not.
func (o *Owner) zero(clause abi.Clause, where abi.Ring, number uint32, area *queues.Area, length uint64) {
	if !o.strict || area == nil {
		return
	}
	var b [512]byte
	for at := uint64(0); at < min(length, strictArea); at += uint64(len(b)) {
		part := b[:min(uint64(len(b)), length-at)]
		if area.ReadAt(at, part) != nil {
			return
		}
		for i, v := range part {
			if v != 0 {
				o.Broke(clause, where, number, uint32(at)+uint32(i), part[i&^7:])
				return
			}
		}
	}
}

// brokeDoorbell reports a doorbell record that breaks a clause.
func (o *Owner) brokeDoorbell(clause abi.Clause, d *abi.Doorbell) {
	var b [abi.DoorbellSize]byte
	d.Marshal(b[:])
	where := abi.RingDoorbell
	switch d.Kind {
	case abi.DoorbellAdmin:
		where = abi.RingAdmin
	case abi.DoorbellSQ:
		where = abi.RingSQ
	case abi.DoorbellRQ:
		where = abi.RingRQ
	case abi.DoorbellCQArm:
		where = abi.RingCQ
	case abi.DoorbellSRQ:
		where = abi.RingSRQ
	}
	o.Broke(clause, where, d.Queue, d.Index, b[:])
}

// rungInReset reports a doorbell for a queue of a QP in RESET.
func (o *Owner) rungInReset(kind abi.Ring, qpn, index uint32) {
	if index != 0 {
		o.Broke(abi.DRV601, kind, qpn, index, word(index))
	}
}

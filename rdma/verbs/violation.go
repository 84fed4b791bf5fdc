package verbs

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// UseStrict adds checks that are not needed to be safe from a driver, only to tell it what it does
// wrong: bytes and areas that have to be zero.
func (o *Owner) UseStrict(on bool) { o.strict = on }

// Strict reports whether to look for what is wrong but harms nobody.
func (o *Owner) Strict() bool { return o.strict }

// Broke reports that the driver broke a clause of docs/abi: which one, where, and the bytes that
// show it.
func (o *Owner) Broke(clause abi.Clause, where abi.Ring, number, index uint32, b []byte) {
	v := &abi.Violation{Clause: uint16(clause), Ring: where, Queue: number, Index: index}
	v.Length = uint8(copy(v.Bytes[:], b))
	o.out.Violation(v)
}

// word is four bytes to show.
func word(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }

// strictArea bounds what is looked at of an area that has to be zero.
const strictArea = 64 << 10

// zero reports the first bytes of an area that are not zero, up to length.
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

// brokeDoorbell reports a doorbell record.
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

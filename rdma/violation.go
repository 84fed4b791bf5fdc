package rdma

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// UseStrict adds checks that are not needed to be safe from a driver, only to tell it what it does
// wrong: bytes and areas that have to be zero.
func (f *Function) UseStrict(on bool) { f.strict = on }

// broke reports that the driver broke a clause of docs/abi: which one, where, and the bytes that
// show it.
func (f *Function) broke(clause abi.Clause, where abi.Ring, number, index uint32, b []byte) {
	v := &abi.Violation{Clause: uint16(clause), Ring: where, Queue: number, Index: index}
	v.Length = uint8(copy(v.Bytes[:], b))
	f.out.Violation(v)
}

// word is four bytes to show.
func word(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }

// kind is what the queue is to the driver.
func (u *queue) kind() abi.Ring {
	switch u.name {
	case "SQ of QP":
		return abi.RingSQ
	case "RQ of QP":
		return abi.RingRQ
	}
	return abi.RingSRQ
}

// brokeDoorbell reports a doorbell record.
func (f *Function) brokeDoorbell(clause abi.Clause, d *abi.Doorbell) {
	var b [abi.DoorbellSize]byte
	d.Marshal(b[:])
	where := abi.RingAdmin
	switch d.Kind {
	case abi.DoorbellSQ:
		where = abi.RingSQ
	case abi.DoorbellRQ:
		where = abi.RingRQ
	case abi.DoorbellCQArm:
		where = abi.RingCQ
	case abi.DoorbellSRQ:
		where = abi.RingSRQ
	}
	f.broke(clause, where, d.Queue, d.Index, b[:])
}

// strictArea bounds what is looked at of an area that has to be zero.
const strictArea = 64 << 10

// zero reports the first bytes of an area that are not zero, up to length.
func (f *Function) zero(clause abi.Clause, where abi.Ring, number uint32, area *queues.Area, length uint64) {
	if !f.strict || area == nil {
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
				f.broke(clause, where, number, uint32(at)+uint32(i), part[i&^7:])
				return
			}
		}
	}
}

// checkReserved reports an entry whose reserved bytes are not zero.
func (u *queue) checkReserved(index uint32, raw []byte, known interface{ Marshal([]byte) }) {
	if !u.fn.strict {
		return
	}
	var again [abi.SendWQESize]byte
	known.Marshal(again[:])
	for i := range raw {
		if raw[i] != again[i] {
			u.fn.broke(abi.DRV102, u.kind(), u.number, index, raw)
			return
		}
	}
}

// brokenBy names the clause that an entry breaks by its form; what it names may be wrong as well,
// which is no matter of the ABI.
func (q *QP) brokenBy(w *work) abi.Clause {
	x := &w.wqe
	masked := x.Opcode == abi.OpMaskedCmpSwap || x.Opcode == abi.OpMaskedFetchAdd
	switch {
	case masked && !q.fn.extended:
		return abi.DRV103
	case x.Flags&abi.SendInline != 0 && x.InlineLen > uint32(q.req.maxInline), x.Flags&abi.SendInline == 0 && int(x.NumSGE) > q.req.maxSGE:
		return abi.DRV608
	case masked && x.NumSGE != 1:
		return abi.DRV611
	}
	return 0
}

// brokeXRC reports that an XRC QP was to be made with parts it does not have.
func (f *Function) brokeXRC(c *abi.CreateQP, st abi.Status) {
	if st == abi.StatusInvalidArgument && (c.Type == abi.QPTypeXRCSend || c.Type == abi.QPTypeXRCRecv) {
		f.broke(abi.DRV924, abi.RingAdmin, 0, 0, []byte{byte(c.Type)})
	}
}

// brokeReset reports a doorbell for a queue of a QP in RESET.
func (q *QP) brokeReset(u *queue, index uint32) {
	if index != 0 {
		q.fn.broke(abi.DRV601, u.kind(), q.number, index, word(index))
	}
}

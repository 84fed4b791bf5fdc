package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// UseStrict switches on checks that do not protect the device but tell a driver what it does wrong,
// such as bytes and areas that must be zero.
func (o *Owner) UseStrict(on bool) { o.strict = on }

// Broke reports that the driver broke a clause of docs/abi: which one, where, and the bytes that
// show it.
func (o *Owner) Broke(clause abi.Clause, where abi.Ring, number, index uint32, b []byte) {
	v := &abi.Violation{Clause: uint16(clause), Ring: where, Queue: number, Index: index}
	v.Length = uint8(copy(v.Bytes[:], b))
	o.notifier.Violation(v)
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

// Mistake describes what is wrong with a work request that fails because of an error on its own
// side. The driver gets the status in the completion; this is for people who look for the cause.
// The request need not break a clause of docs/abi: examples are an operation that the queue pair
// does not have, a key, a length.
type Mistake struct {
	Ring   abi.Ring // RingSQ, RingRQ or RingSRQ
	Queue  uint32   // the QP or SRQ
	Index  uint32   // of the entry
	Status abi.WCStatus
	Why    Reason
}

// Reason is a text that is formatted only when it is read, because a driver may make mistakes as
// fast as it posts.
type Reason struct {
	format string
	args   [4]uint64
	n      int
}

func because(format string, args ...uint64) Reason {
	r := Reason{format: format}
	r.n = copy(r.args[:], args)
	return r
}

func (r Reason) String() string {
	args := make([]any, r.n)
	for i := range args {
		args[i] = r.args[i]
	}
	return fmt.Sprintf(r.format, args...)
}

// mistaken reports what is wrong with the entry of a queue.
func (u *WorkQueue) mistaken(index uint32, st abi.WCStatus, why Reason) {
	u.owner.notifier.Mistake(&Mistake{Ring: u.kind, Queue: u.number, Index: index, Status: st, Why: why})
}

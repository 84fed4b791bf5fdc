package device

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"log/slog"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// maxViolations is how many a function keeps; older ones make room.
const maxViolations = 64

// violation is a clause of docs/abi that a driver broke, and when first.
type violation struct {
	abi.Violation
	at falcon.Time
}

// Violation implements verbs.Notifier. The same clause at the same queue is logged
// and kept once, and counted.
func (f *function) Violation(v *abi.Violation) {
	for i := range f.violations {
		old := &f.violations[i]
		if old.Clause == v.Clause && old.Ring == v.Ring && old.Queue == v.Queue {
			if old.Count < 1<<32-1 {
				old.Count++
			}
			return
		}
	}
	if len(f.violations) == maxViolations {
		f.violations = f.violations[:copy(f.violations, f.violations[1:])]
		f.violationsLost++
	}
	v.Count = 1
	f.violations = append(f.violations, violation{*v, f.shard.now})
	f.shard.log.line(f.shard.now, slog.LevelWarn, "driver broke a rule of docs/abi", "function", f.ID.String(), "clause", abi.Clause(v.Clause).String(),
		"ring", v.Ring.String(), "queue", v.Queue, "index", v.Index, "bytes", hex.EncodeToString(v.Bytes[:v.Length]))
}

// broke records a violation that the device itself found.
func (f *function) broke(clause abi.Clause, where abi.Ring, queue, index uint32, b []byte) {
	v := &abi.Violation{Clause: uint16(clause), Ring: where, Queue: queue, Index: index}
	v.Length = uint8(copy(v.Bytes[:], b))
	f.Violation(v)
}

// queryViolation answers the driver: 0 is the newest.
func (f *function) queryViolation(index uint32) (abi.Violation, abi.Status) {
	if uint64(index) >= uint64(len(f.violations)) {
		return abi.Violation{}, abi.StatusNotFound
	}
	return f.violations[len(f.violations)-1-int(index)].Violation, abi.StatusOK
}

// Violations lists the rules that drivers broke. It implements control.Provider.
func (n *NIC) Violations(context.Context) (list []control.Violation, err error) {
	err = n.shard.do(func(now falcon.Time) {
		for _, f := range n.shard.funcs.all {
			for _, v := range f.violations {
				list = append(list, control.Violation{
					Function: f.ID.String(), Clause: abi.Clause(v.Clause).String(), Ring: v.Ring.String(), Queue: v.Queue, Index: v.Index,
					Bytes: hex.EncodeToString(v.Bytes[:v.Length]), Count: v.Count, AgeMS: (now - v.at) / 1e6,
				})
			}
		}
	})
	return list, err
}

// breached records the end of a session that a breach brought about.
func (f *function) breached(fault error) {
	if b := (*guest.Breach)(nil); errors.As(fault, &b) {
		f.broke(b.Clause, abi.RingStream, 0, 0, b.Bytes)
	}
}

// judgeCommand records what a command broke, from its outcome.
func (f *function) judgeCommand(cmd *abi.AdminCmd, st abi.Status) {
	for _, clause := range f.caller().Broken(cmd, st, f.shard.cfg.NIC.Strict) {
		var raw [abi.AdminCmdSize]byte
		cmd.Marshal(raw[:])
		f.broke(clause, abi.RingAdmin, 0, f.admin.sq.Next()-1, raw[:])
	}
}

// judgeRegister records what a register access broke.
func (f *function) judgeRegister(it *guest.Request, st abi.Status, before abi.State) {
	var b []byte
	if it.Kind == guest.RegWrite {
		b = binary.LittleEndian.AppendUint64(nil, it.Value)
	}
	r := abi.LookupRegister(it.Offset)
	switch {
	case r == nil || r.Width != it.Width:
		f.broke(abi.DRV306, abi.RingRegister, 0, it.Offset, b)
	case it.Kind == guest.RegWrite && st == abi.StatusBadState && before == abi.StateError && it.Offset == abi.RegControl:
		f.broke(abi.DRV304, abi.RingRegister, 0, it.Offset, b)
	case it.Kind == guest.RegWrite && st == abi.StatusBadState && it.Offset != abi.RegControl:
		f.broke(abi.DRV301, abi.RingRegister, 0, it.Offset, b)
	case it.Kind == guest.RegWrite && st == abi.StatusMemoryFault:
		f.broke(abi.DRV401, abi.RingRegister, 0, it.Offset, b)
	}
}

// judgePages records admin pages that are not zero at ControlEnable.
func (f *function) judgePages() {
	if !f.shard.cfg.NIC.Strict {
		return
	}
	var b [abi.PageSize]byte
	for _, addr := range []uint64{f.admin.sqAddr, f.admin.cqAddr} {
		if f.binding.Memory.Read(addr, b[:]) != nil {
			return
		}
		for i, v := range b {
			if v != 0 {
				f.broke(abi.DRV301, abi.RingAdmin, 0, uint32(i), b[i&^7:])
				return
			}
		}
	}
}

// judgeDoorbell records a doorbell message beside a ring in use, and reserved bytes.
func (f *function) judgeDoorbell(b *guest.Binding, d *abi.Doorbell, raw *[abi.DoorbellSize]byte) {
	if b.Rang {
		var is [abi.DoorbellSize]byte
		d.Marshal(is[:])
		f.broke(abi.DRV1004, abi.RingStream, d.Queue, d.Index, is[:])
	}
	if raw != nil {
		f.broke(abi.DRV102, abi.RingStream, d.Queue, d.Index, raw[:])
	}
}

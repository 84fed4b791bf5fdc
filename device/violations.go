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

// Violation implements verbs.Notifier. Of the command in progress the engine does not know which it
// is, and has bytes only where it knows better than the command itself what was wrong.
func (f *function) Violation(v *abi.Violation) {
	if v.Ring == abi.RingAdmin && f.admin.busy {
		f.admin.told, v.Index = abi.Clause(v.Clause), f.admin.sq.Next()-1
		if v.Length == 0 {
			v.Length = uint8(copy(v.Bytes[:], commandBytes(&f.admin.cmd)))
		}
	}
	now := f.shard.now
	if f.violations.Note(now, v) {
		f.shard.log.line(now, slog.LevelWarn, "driver broke a rule of docs/abi", "function", f.ID.String(), "clause", abi.Clause(v.Clause).String(),
			"ring", v.Ring.String(), "queue", v.Queue, "index", v.Index, "bytes", hex.EncodeToString(v.Bytes[:v.Length]))
	}
}

// broke records a violation that the device itself found.
func (f *function) broke(clause abi.Clause, where abi.Ring, queue, index uint32, b []byte) {
	v := &abi.Violation{Clause: uint16(clause), Ring: where, Queue: queue, Index: index}
	v.Length = uint8(copy(v.Bytes[:], b))
	f.Violation(v)
}

// Violations lists the rules that drivers broke. It implements control.Provider.
func (n *NIC) Violations(context.Context) (list []control.Violation, err error) {
	err = n.shard.do(func(now falcon.Time) { list = n.shard.brokenRules(now) })
	return list, err
}

// ClearViolations forgets the rules that drivers broke, and returns what it forgot. It implements
// control.Provider.
func (n *NIC) ClearViolations(context.Context) (list []control.Violation, err error) {
	err = n.shard.do(func(now falcon.Time) {
		list = n.shard.brokenRules(now)
		for _, f := range n.shard.funcs.all {
			f.violations.Clear()
		}
	})
	return list, err
}

// brokenRules lists the rules that drivers broke.
func (s *Shard) brokenRules(now falcon.Time) (list []control.Violation) {
	for _, f := range s.funcs.all {
		for _, v := range f.violations.All() {
			list = append(list, control.Violation{
				Function: f.ID.String(), Clause: abi.Clause(v.Clause).String(), Ring: v.Ring.String(), Queue: v.Queue, Index: v.Index,
				Bytes: hex.EncodeToString(v.Bytes[:v.Length]), Count: v.Count, AgeMS: (now - v.At) / 1e6,
			})
		}
	}
	return list
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
		if clause != f.admin.told {
			f.broke(clause, abi.RingAdmin, 0, f.admin.sq.Next()-1, commandBytes(cmd))
		}
	}
}

// commandBytes is a command as it came.
func commandBytes(cmd *abi.AdminCmd) []byte {
	b := make([]byte, abi.AdminCmdSize)
	cmd.Marshal(b)
	return b
}

// judgeRegister records what a register access broke.
func (f *function) judgeRegister(it *guest.Request, st abi.Status, before abi.State) {
	var b []byte
	if it.Kind == guest.RegWrite {
		b = binary.LittleEndian.AppendUint64(nil, it.Value)
	}
	r := abi.LookupRegister(it.Offset)
	switch write := it.Kind == guest.RegWrite; {
	case r == nil || r.Width != it.Width, write && !r.Writable, !write && !r.Readable:
		f.broke(abi.DRV306, abi.RingRegister, 0, it.Offset, b)
	case write && it.Width == 4 && it.Value>>32 != 0:
		f.broke(abi.DRV102, abi.RingRegister, 0, it.Offset, b)
	case write && st == abi.StatusBadState && before == abi.StateError && it.Offset == abi.RegControl:
		f.broke(abi.DRV304, abi.RingRegister, 0, it.Offset, b)
	case write && st == abi.StatusBadState && it.Offset != abi.RegControl:
		f.broke(abi.DRV301, abi.RingRegister, 0, it.Offset, b)
	case write && st == abi.StatusMemoryFault:
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

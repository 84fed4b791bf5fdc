package device

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// features the device offers.
const features = guest.Features

// handle carries out one thing a driver asked.
func (s *Shard) handle(now falcon.Time, b *guest.Binding, f *function, it *guest.Request) {
	if f.binding != b {
		return // the session is gone
	}
	switch it.Kind {
	case guest.ReservedBits:
		f.broke(abi.DRV102, abi.RingStream, 0, 0, it.Dirty[:])
	case guest.Ring:
		s.guests.Doorbells++
		if b.Rang || it.Dirty != nil {
			f.judgeDoorbell(b, &it.Doorbell, it.Dirty)
		}
		f.doorbell(now, &it.Doorbell)
	case guest.RegRead:
		v, st := f.readRegister(it.Offset, it.Width)
		f.judgeRegister(it, st, f.Lifecycle.State())
		b.Reply(it.Tag, &abi.RegReply{Status: st, Value: v})
	case guest.RegWrite:
		before := f.Lifecycle.State()
		st := f.writeRegister(now, it.Offset, it.Width, it.Value)
		f.judgeRegister(it, st, before)
		b.Reply(it.Tag, &abi.RegReply{Status: st})
	}
}

// doorbell passes a ring on. Before the function is READY, and after a fault,
// rings mean nothing.
func (f *function) doorbell(now falcon.Time, d *abi.Doorbell) {
	if f.Lifecycle.State() != abi.StateReady || f.faultCode != abi.FaultNone {
		return
	}
	if d.Kind == abi.DoorbellAdmin {
		f.adminDoorbell(now, d.Index)
		return
	}
	f.verbs.Doorbell(now, d)
}

func lookup(offset, width uint32) (*abi.Register, abi.Status) {
	r := abi.LookupRegister(offset)
	switch {
	case r == nil:
		return nil, abi.StatusNotFound
	case r.Width != width:
		return nil, abi.StatusInvalidArgument
	}
	return r, abi.StatusOK
}

func (f *function) readRegister(offset, width uint32) (uint64, abi.Status) {
	r, st := lookup(offset, width)
	if st != abi.StatusOK {
		return 0, st
	}
	if !r.Readable {
		return 0, abi.StatusDenied
	}
	return f.register(offset), abi.StatusOK
}

// register returns the value of a readable register.
func (f *function) register(offset uint32) uint64 {
	gid := f.gid()
	switch offset {
	case abi.RegMagic:
		return abi.Magic
	case abi.RegVersion:
		return abi.VersionMajor<<16 | abi.VersionMinor
	case abi.RegFeatures:
		return features
	case abi.RegFunction:
		return uint64(f.ID)
	case abi.RegFunctionType:
		if f.ID.IsVF() {
			return uint64(abi.FunctionVF)
		}
		return uint64(abi.FunctionPF)
	case abi.RegState:
		return uint64(f.Lifecycle.State())
	case abi.RegFault:
		code, _ := f.Lifecycle.Fault()
		return uint64(code)
	case abi.RegAdminSQ:
		return f.admin.sqAddr
	case abi.RegAdminCQ:
		return f.admin.cqAddr
	case abi.RegAdminEntries:
		return uint64(f.admin.entries)
	case abi.RegMAC:
		return binary.LittleEndian.Uint64(append(f.MAC[:len(f.MAC):len(f.MAC)], 0, 0))
	case abi.RegTenant:
		return uint64(f.Tenant)
	case abi.RegMTU:
		return uint64(f.shard.cfg.RDMA.MTU)
	case abi.RegGIDHi:
		return binary.BigEndian.Uint64(gid[:])
	case abi.RegGIDLo:
		return binary.BigEndian.Uint64(gid[8:])
	case abi.RegDMAWindow:
		return f.window().Addr
	case abi.RegDMAWindowLength:
		return f.window().Size
	case abi.RegMaxQP:
		return uint64(f.limits.Objects[verbs.KindQP])
	case abi.RegMaxCQ:
		return uint64(f.limits.Objects[verbs.KindCQ])
	case abi.RegMaxMR:
		return uint64(f.limits.Objects[verbs.KindMR])
	case abi.RegMaxPD:
		return uint64(f.limits.Objects[verbs.KindPD])
	case abi.RegMaxSGE:
		return uint64(f.limits.SGEs)
	case abi.RegMaxInline:
		return uint64(f.limits.Inline)
	case abi.RegMaxQPEntries:
		return uint64(f.limits.QPEntries)
	case abi.RegMaxCQEntries:
		return uint64(f.limits.CQEntries)
	case abi.RegMaxReadAtomic:
		return uint64(f.limits.ReadAtomic)
	}
	return f.shareRegister(offset)
}

func (f *function) gid() [16]byte {
	if !f.Addr.IsValid() {
		return [16]byte{}
	}
	return f.GID()
}

// pathMTU is the ABI's code of the NIC's RDMA MTU.
func (s *Shard) pathMTU() abi.PathMTU {
	return abi.PathMTUFor(s.cfg.RDMA.MTU)
}

func (f *function) writeRegister(now falcon.Time, offset, width uint32, v uint64) abi.Status {
	r, st := lookup(offset, width)
	switch {
	case st != abi.StatusOK:
		return st
	case !r.Writable:
		return abi.StatusDenied
	case width == 4 && v>>32 != 0:
		return abi.StatusInvalidArgument
	}
	if offset == abi.RegControl {
		return f.control(now, abi.Control(v))
	}
	if f.Lifecycle.State() != abi.StateReset {
		return abi.StatusBadState
	}
	switch offset {
	case abi.RegAdminSQ, abi.RegAdminCQ:
		if v%abi.PageSize != 0 {
			return abi.StatusInvalidArgument
		}
		if offset == abi.RegAdminSQ {
			f.admin.sqAddr = v
		} else {
			f.admin.cqAddr = v
		}
	case abi.RegAdminEntries:
		if v < 2 || v > abi.MaxAdminEntries || v&(v-1) != 0 {
			return abi.StatusInvalidArgument
		}
		f.admin.entries = uint32(v)
	}
	return abi.StatusOK
}

func (f *function) control(now falcon.Time, c abi.Control) abi.Status {
	switch c {
	case abi.ControlEnable:
		if f.Lifecycle.State() != abi.StateReset {
			return abi.StatusBadState
		}
		if f.admin.entries == 0 {
			return abi.StatusInvalidArgument
		}
		return f.enable()
	case abi.ControlReset:
		if f.Lifecycle.State() == abi.StateDisabled {
			return abi.StatusDenied
		}
		f.takeVFsDown(now)
		f.reset(now)
		f.binding.Channel.Forget()
		return abi.StatusOK
	}
	return abi.StatusInvalidArgument
}

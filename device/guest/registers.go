package guest

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/queues/abi"
)

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

// Registers gives access to a function's registers, as its driver sees them.
type Registers struct{ *Device }

// Registers returns the function's registers.
func (f *Device) Registers() Registers { return Registers{f} }

// Read reads a register.
func (f Registers) Read(offset, width uint32) (uint64, abi.Status) {
	r, st := lookup(offset, width)
	if st != abi.StatusOK {
		return 0, st
	}
	if !r.Readable {
		return 0, abi.StatusDenied
	}
	return f.Value(offset), abi.StatusOK
}

// Value returns the value of a readable register.
func (f Registers) Value(offset uint32) uint64 {
	gid, l := f.gid(), &f.is.Limits
	switch offset {
	case abi.RegMagic:
		return abi.Magic
	case abi.RegVersion:
		return abi.VersionMajor<<16 | abi.VersionMinor
	case abi.RegFeatures:
		return f.is.Features()
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
		return f.admin.sqRoot
	case abi.RegAdminCQ:
		return f.admin.cqRoot
	case abi.RegAdminEntries:
		return uint64(f.admin.entries)
	case abi.RegMAC:
		return binary.LittleEndian.Uint64(append(f.MAC[:len(f.MAC):len(f.MAC)], 0, 0))
	case abi.RegTenant:
		return uint64(f.Tenant)
	case abi.RegMTU:
		return uint64(f.set.cfg.MTU)
	case abi.RegGIDHi:
		return binary.BigEndian.Uint64(gid[:])
	case abi.RegGIDLo:
		return binary.BigEndian.Uint64(gid[8:])
	case abi.RegDMAWindow:
		return f.is.Window.Addr
	case abi.RegDMAWindowLength:
		return f.is.Window.Size
	case abi.RegMaxQP:
		return uint64(l.Objects[abi.ObjectQP])
	case abi.RegMaxCQ:
		return uint64(l.Objects[abi.ObjectCQ])
	case abi.RegMaxMR:
		return uint64(l.Objects[abi.ObjectMR])
	case abi.RegMaxPD:
		return uint64(l.Objects[abi.ObjectPD])
	case abi.RegMaxSGE:
		return uint64(l.SGEs)
	case abi.RegMaxInline:
		return uint64(l.Inline)
	case abi.RegMaxQPEntries:
		return uint64(l.QPEntries)
	case abi.RegMaxCQEntries:
		return uint64(l.CQEntries)
	case abi.RegMaxReadAtomic:
		return uint64(l.ReadAtomic)
	}
	return f.share(offset)
}

func (f Registers) gid() [16]byte {
	if !f.Addr.IsValid() {
		return [16]byte{}
	}
	return f.GID()
}

// share returns the value of a register about the function's share of the NIC (link, rate, VFs,
// credits) or the NIC's clock.
func (f Registers) share(offset uint32) uint64 {
	switch offset {
	case abi.RegLinkUp:
		if f.LinkUp {
			return 1
		}
		return 0
	case abi.RegMaxTxRate:
		return min(f.is.MaxTxRate, 1<<32-1)
	case abi.RegSpeed:
		if most := f.is.MaxTxRate; most != 0 {
			return min(most, uint64(f.set.cfg.Speed))
		}
		return uint64(f.set.cfg.Speed)
	case abi.RegClock:
		return uint64(f.set.now)
	case abi.RegTotalVF:
		possible, _ := f.owner.VFs()
		return uint64(possible)
	case abi.RegNumVF:
		_, enabled := f.owner.VFs()
		return uint64(enabled)
	}
	const first, size = abi.RegCreditLimitReqPktTx, 4 * credit.NumCounters
	if offset < first || offset >= first+3*size {
		return 0
	}
	part := [3]credit.Cost{f.Credits.Limit(), f.Credits.Guaranteed(), f.Credits.InUse()}
	return uint64(part[(offset-first)/size][(offset-first)%size/4])
}

// Write writes a register.
func (f Registers) Write(now falcon.Time, offset, width uint32, v uint64) abi.Status {
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
			f.admin.sqRoot = v
		} else {
			f.admin.cqRoot = v
		}
	case abi.RegAdminEntries:
		if v < 2 || v > abi.MaxAdminEntries || v&(v-1) != 0 {
			return abi.StatusInvalidArgument
		}
		f.admin.entries = uint32(v)
	}
	return abi.StatusOK
}

func (f Registers) control(now falcon.Time, c abi.Control) abi.Status {
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
		f.owner.TakeVFsDown(now)
		f.Reset(now)
		f.forget()
		return abi.StatusOK
	}
	return abi.StatusInvalidArgument
}

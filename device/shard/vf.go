package shard

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/functions"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// vfCommands carries out the commands by which a PF manages one of its VFs, on any shard: they all
// go through the core, in order, and complete when it answers.
type vfCommands struct {
	core  FunctionRequests
	id    pfvf.ID // the VF
	later func() abi.Ticket
}

func (c *vfCommands) change(edit functions.Edit) abi.Status {
	t := c.later()
	c.core.Change(c.id, edit, func(err error) { t.Complete(functions.StatusOf(err), nil) })
	return abi.StatusPending
}

// VFEnable implements abi.VFHandler.
func (c *vfCommands) VFEnable() abi.Status { return c.change(functions.Enable) }

// VFDisable implements abi.VFHandler.
func (c *vfCommands) VFDisable() abi.Status { return c.change(functions.Disable) }

// SetVF implements abi.VFHandler.
func (c *vfCommands) SetVF(p *abi.SetVF) abi.Status {
	return c.change(func(pf, to *config.Function) error { return functions.SetVF(pf, to, p) })
}

// SetVFWindow implements abi.VFHandler.
func (c *vfCommands) SetVFWindow(p *abi.SetVFWindow) abi.Status {
	return c.change(func(_, to *config.Function) error { functions.SetWindow(to, p); return nil })
}

// SetVFCredits implements abi.VFHandler.
func (c *vfCommands) SetVFCredits(p *abi.SetVFCredits) abi.Status {
	return c.change(func(pf, to *config.Function) error { return functions.SetCredits(pf, to, p) })
}

// SetVFObjects implements abi.VFHandler.
func (c *vfCommands) SetVFObjects(p *abi.SetVFObjects) abi.Status {
	return c.change(func(pf, to *config.Function) error { return functions.SetObjects(pf, to, p) })
}

// visit calls f with the VF on the VF's shard, and completes the command with f's result.
func visit[R any, P interface {
	*R
	abi.Result
}](c *vfCommands, f func(abi.VFHandler) (R, abi.Status),
) (r R, st abi.Status) {
	c.core.Visit(c.id, func(vf abi.VFHandler) (abi.Status, abi.Result) {
		seen, is := f(vf)
		return is, P(&seen)
	}, c.later().Complete)
	return r, abi.StatusPending
}

// QueryVF implements abi.VFHandler.
func (c *vfCommands) QueryVF() (abi.QueryVFResult, abi.Status) {
	return visit(c, func(vf abi.VFHandler) (abi.QueryVFResult, abi.Status) { return vf.QueryVF() })
}

// QueryVFCredits implements abi.VFHandler.
func (c *vfCommands) QueryVFCredits(part abi.CreditPart) (abi.CreditCounts, abi.Status) {
	return visit(c, func(vf abi.VFHandler) (abi.CreditCounts, abi.Status) { return vf.QueryVFCredits(part) })
}

// QueryVFObjects implements abi.VFHandler.
func (c *vfCommands) QueryVFObjects(part abi.CreditPart) (abi.ObjectCounts, abi.Status) {
	return visit(c, func(vf abi.VFHandler) (abi.ObjectCounts, abi.Status) { return vf.QueryVFObjects(part) })
}

// VFReset implements abi.VFHandler.
func (c *vfCommands) VFReset() abi.Status {
	c.core.Visit(c.id, func(vf abi.VFHandler) (abi.Status, abi.Result) { return vf.VFReset(), nil }, c.later().Complete)
	return abi.StatusPending
}

// seenVF is a VF of the shard as its PF sees it, at one moment. It does not change settings (see
// functions.Registry).
type seenVF struct {
	abi.VFHandler // nil: the methods not defined here are never called

	fs  *functionSet
	id  pfvf.ID
	now falcon.Time
}

// QueryVF implements abi.VFHandler.
func (c *seenVF) QueryVF() (abi.QueryVFResult, abi.Status) {
	to := c.fs.settings(c.id)
	r := abi.QueryVFResult{
		State: abi.StateDisabled, Link: abi.Link(to.Link), MAC: to.MAC, Tenant: to.Tenant, MaxTxRate: uint32(min(to.MaxTxRate, 1<<32-1)),
	}
	if to.Trust {
		r.Trust = 1
	}
	if *to.SpoofCheck {
		r.SpoofCheck = 1
	}
	if to.Address.IsValid() {
		r.GID = to.Address.As16()
	}
	f := c.fs.members.get(c.id)
	if f == nil {
		return r, abi.StatusOK
	}
	r.State = f.Lifecycle.State()
	if f.LinkUp {
		r.LinkUp = 1
	}
	if f.Driver() != nil {
		r.Attached = 1
	}
	if v := f.Verbs(); v != nil {
		n := v.Counts()
		r.QPs, r.MRs = uint32(n[abi.ObjectQP]), uint32(n[abi.ObjectMR])
	}
	return r, abi.StatusOK
}

// QueryVFCredits implements abi.VFHandler.
func (c *seenVF) QueryVFCredits(part abi.CreditPart) (r abi.CreditCounts, st abi.Status) {
	to := c.fs.settings(c.id)
	var cost credit.Cost
	switch part {
	case abi.CreditLimit:
		cost = to.Credits.Cost()
	case abi.CreditGuarantee:
		cost = to.Guarantee.Cost()
	case abi.CreditInUse:
		if f := c.fs.members.get(c.id); f != nil {
			cost = f.Credits.InUse()
		}
	default:
		return r, abi.StatusInvalidArgument
	}
	var raw [abi.CreditCountsSize]byte
	for i, v := range cost {
		binary.LittleEndian.PutUint32(raw[4*i:], v)
	}
	r.Unmarshal(raw[:])
	return r, abi.StatusOK
}

// QueryVFObjects implements abi.VFHandler.
func (c *seenVF) QueryVFObjects(part abi.CreditPart) (abi.ObjectCounts, abi.Status) {
	return c.fs.queryObjects(c.id, part)
}

// VFReset implements abi.VFHandler.
func (c *seenVF) VFReset() abi.Status {
	c.fs.ordered(order{ResetVF: &c.id})
	vf := c.fs.members.get(c.id)
	if vf == nil || vf.Lifecycle.State() == abi.StateDisabled {
		return abi.StatusBadState
	}
	vf.TakeDown(c.now, "its PF reset it")
	return abi.StatusOK
}

// queryObjects returns how many objects a function may have, or has.
func (fs *functionSet) queryObjects(id pfvf.ID, part abi.CreditPart) (o abi.ObjectCounts, st abi.Status) {
	switch part {
	case abi.CreditLimit:
		c := fs.settings(id)
		for k := range abi.NumObjects {
			*o.Of(k) = *c.Limits.Quotas.Of(k)
		}
	case abi.CreditInUse:
		if f := fs.members.get(id); f != nil && f.Verbs() != nil {
			for k, n := range f.Verbs().Counts() {
				*o.Of(abi.Object(k)) = uint32(n)
			}
		}
	default:
		return o, abi.StatusInvalidArgument
	}
	return o, abi.StatusOK
}

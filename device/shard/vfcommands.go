package shard

import (
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/functions"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// vfCommands carries out the commands by which a PF manages one of its VFs, on any shard: they all
// go through the core, in order, and complete when it answers.
type vfCommands struct {
	core  VFs
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
	t := c.later()
	seen, is := new(R), abi.StatusOK
	c.core.Visit(c.id, func(vf abi.VFHandler) { *seen, is = f(vf) }, func() { t.Complete(is, P(seen)) })
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
	t, is := c.later(), abi.StatusOK
	c.core.Visit(c.id, func(vf abi.VFHandler) { is = vf.VFReset() }, func() { t.Complete(is, nil) })
	return abi.StatusPending
}

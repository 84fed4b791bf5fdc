package shard

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// vfCommands carries out the commands by which a PF manages one of its VFs, at one moment: nothing
// that would reach beyond what the PF itself has. A PF that is not trusted gives its VFs its own
// tenant, at most its own quotas and credit limits, and no trust and no guarantee.
type vfCommands struct {
	pf  *function
	id  pfvf.ID // of the VF
	now falcon.Time
}

// VFEnable implements abi.VFHandler.
func (c *vfCommands) VFEnable() abi.Status {
	return c.change(func(to *config.Function) error {
		if to.Guest == nil {
			to.Guest = c.pf.cfg.Guest
		}
		to.Enabled = yes()
		return nil
	})
}

// VFDisable implements abi.VFHandler.
func (c *vfCommands) VFDisable() abi.Status {
	return c.change(func(to *config.Function) error { to.Enabled = no(); return nil })
}

// VFReset implements abi.VFHandler.
func (c *vfCommands) VFReset() abi.Status {
	vf := c.pf.shard.funcs.byID[c.id]
	if vf == nil || vf.Lifecycle.State() == abi.StateDisabled {
		return abi.StatusBadState
	}
	vf.TakeDown(c.now, "its PF reset it")
	return abi.StatusOK
}

// SetVF implements abi.VFHandler.
func (c *vfCommands) SetVF(p *abi.SetVF) abi.Status {
	return c.change(func(to *config.Function) error { return c.pf.editVF(to, p) })
}

// SetVFWindow implements abi.VFHandler.
func (c *vfCommands) SetVFWindow(p *abi.SetVFWindow) abi.Status {
	return c.change(func(to *config.Function) error {
		to.DMAWindow = nil
		if p.Length != 0 {
			to.DMAWindow = &config.Window{Address: config.Size(p.Address), Size: config.Size(p.Length)}
		}
		return nil
	})
}

// SetVFCredits implements abi.VFHandler.
func (c *vfCommands) SetVFCredits(p *abi.SetVFCredits) abi.Status {
	return c.change(func(to *config.Function) error { return c.pf.editCredits(to, p) })
}

// SetVFObjects implements abi.VFHandler.
func (c *vfCommands) SetVFObjects(p *abi.SetVFObjects) abi.Status {
	return c.change(func(to *config.Function) error { return c.pf.editObjects(to, p) })
}

// QueryVFObjects implements abi.VFHandler.
func (c *vfCommands) QueryVFObjects(part abi.CreditPart) (abi.ObjectCounts, abi.Status) {
	return c.pf.shard.funcs.queryObjects(c.id, part)
}

func yes() *bool { b := true; return &b }
func no() *bool  { return new(bool) }

func (c *vfCommands) change(edit func(*config.Function) error) abi.Status {
	err := c.pf.shard.funcs.change(c.now, c.id, edit)
	if err == nil {
		return abi.StatusOK
	}
	return err.(*refusal).status
}

func denied(format string, args ...any) error {
	return &refusal{abi.StatusDenied, fmt.Sprintf(format, args...)}
}

// editVF is the SetVF command.
func (f *function) editVF(to *config.Function, c *abi.SetVF) error {
	const known = abi.VFAttrMaxPD<<1 - 1
	has := func(bit uint32) bool { return c.Mask&bit != 0 }
	if c.Mask&^known != 0 || c.Trust > 1 || c.SpoofCheck > 1 || c.Link > abi.LinkDisable {
		return fmt.Errorf("a bit or value that is not defined")
	}
	if has(abi.VFAttrMAC) {
		if c.MAC[0]&1 != 0 || c.MAC == [6]byte{} {
			return fmt.Errorf("mac %x is no station's address", c.MAC)
		}
		to.MAC = c.MAC
	}
	if has(abi.VFAttrTenant) {
		if !f.Trust && c.Tenant != f.Tenant {
			return denied("%s is not trusted and gives its own tenant only", f.ID)
		}
		to.Tenant = c.Tenant
	}
	if has(abi.VFAttrGID) {
		to.Address = netip.AddrFrom16(c.GID).Unmap()
	}
	if has(abi.VFAttrMaxTxRate) {
		to.MaxTxRate = uint64(c.MaxTxRate)
	}
	if has(abi.VFAttrLink) {
		to.Link = pfvf.Link(c.Link)
	}
	if has(abi.VFAttrTrust) {
		if !f.Trust && c.Trust == 1 {
			return denied("%s is not trusted and cannot give trust", f.ID)
		}
		to.Trust = c.Trust == 1
	}
	if has(abi.VFAttrSpoofCheck) {
		if !f.Trust && c.SpoofCheck == 0 {
			return denied("%s is not trusted and cannot take the spoof check off", f.ID)
		}
		check := c.SpoofCheck == 1
		to.SpoofCheck = &check
	}
	for _, q := range []struct {
		bit  uint32
		kind abi.Object
		n    uint32
	}{
		{abi.VFAttrMaxQP, abi.ObjectQP, c.MaxQP},
		{abi.VFAttrMaxCQ, abi.ObjectCQ, c.MaxCQ},
		{abi.VFAttrMaxMR, abi.ObjectMR, c.MaxMR},
		{abi.VFAttrMaxPD, abi.ObjectPD, c.MaxPD},
	} {
		if has(q.bit) {
			if err := f.editQuota(to, q.kind, q.n); err != nil {
				return err
			}
		}
	}
	return nil
}

// editObjects is the SetVFObjects command.
func (f *function) editObjects(to *config.Function, c *abi.SetVFObjects) error {
	if c.Mask>>abi.NumObjects != 0 {
		return fmt.Errorf("a bit that is not defined")
	}
	var counts abi.ObjectCounts
	counts.Unmarshal(c.Counts[:])
	for k := range abi.NumObjects {
		if c.Mask>>k&1 == 0 {
			continue
		}
		if err := f.editQuota(to, k, *counts.Of(k)); err != nil {
			return err
		}
	}
	return nil
}

// editQuota sets how many objects of a kind a VF may have.
func (f *function) editQuota(to *config.Function, k abi.Object, n uint32) error {
	switch {
	case n == 0:
		return fmt.Errorf("a quota of 0")
	case n > *f.cfg.Limits.Quotas.Of(k) && !f.Trust:
		return &refusal{abi.StatusTooLarge, "above the PF's own quota"}
	}
	*to.Limits.Quotas.Of(k) = n
	return nil
}

// editCredits is the SetVFCredits command.
func (f *function) editCredits(to *config.Function, c *abi.SetVFCredits) error {
	own := f.cfg.Credits.Cost()
	if c.Mask>>credit.NumCounters != 0 || c.Part > abi.CreditGuarantee {
		return fmt.Errorf("a bit or part that is not defined")
	}
	part := &to.Credits
	if c.Part == abi.CreditGuarantee {
		if !f.Trust {
			return denied("%s is not trusted and cannot guarantee credits", f.ID)
		}
		part = &to.Guarantee
	}
	cost := part.Cost()
	for i := range cost {
		if c.Mask>>i&1 == 0 {
			continue
		}
		cost[i] = binary.LittleEndian.Uint32(c.Counts[4*i:])
		switch {
		case c.Part == abi.CreditLimit && cost[i] == 0:
			return fmt.Errorf("a limit of 0")
		case cost[i] > own[i] && !f.Trust:
			return &refusal{abi.StatusTooLarge, "above the PF's own limit"}
		}
	}
	part.SetCost(cost)
	return nil
}

// QueryVF implements abi.VFHandler.
func (c *vfCommands) QueryVF() (abi.QueryVFResult, abi.Status) {
	to := c.pf.shard.funcs.settings(c.id)
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
	f := c.pf.shard.funcs.byID[c.id]
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
func (c *vfCommands) QueryVFCredits(part abi.CreditPart) (r abi.CreditCounts, st abi.Status) {
	to := c.pf.shard.funcs.settings(c.id)
	var cost credit.Cost
	switch part {
	case abi.CreditLimit:
		cost = to.Credits.Cost()
	case abi.CreditGuarantee:
		cost = to.Guarantee.Cost()
	case abi.CreditInUse:
		if f := c.pf.shard.funcs.byID[c.id]; f != nil {
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

// queryObjects tells how many objects a function may have, or has.
func (fs *functionSet) queryObjects(id pfvf.ID, part abi.CreditPart) (o abi.ObjectCounts, st abi.Status) {
	switch part {
	case abi.CreditLimit:
		c := fs.settings(id)
		for k := range abi.NumObjects {
			*o.Of(k) = *c.Limits.Quotas.Of(k)
		}
	case abi.CreditInUse:
		if f := fs.byID[id]; f != nil && f.Verbs() != nil {
			for k, n := range f.Verbs().Counts() {
				*o.Of(abi.Object(k)) = uint32(n)
			}
		}
	default:
		return o, abi.StatusInvalidArgument
	}
	return o, abi.StatusOK
}

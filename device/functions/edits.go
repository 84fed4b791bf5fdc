package functions

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/settings"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// ByOperator returns the edit for an operator's request to enable, disable or set a function.
// Errors are worded for operators.
func (r *Registry) ByOperator(id pfvf.ID, c *control.FunctionChange) (Edit, error) {
	switch c.Action {
	case "", "enable", "disable":
	default:
		return nil, fmt.Errorf("unknown action %q; use enable, disable or reset", c.Action)
	}
	if c.Action == "" && len(c.Set) == 0 {
		return nil, fmt.Errorf("function %s: nothing to change; set one of %s", id, strings.Join(settings.Keys(), ", "))
	}
	return func(_, to *config.Function) error {
		for _, key := range slices.Sorted(maps.Keys(c.Set)) {
			if err := settings.Set(to, key, c.Set[key]); err != nil {
				return fmt.Errorf("%s: %s: %w", id, key, err)
			}
		}
		if c.Action == "enable" && to.Tenant == 0 {
			return fmt.Errorf("%s has no tenant yet; give it one with an address: vnic vf set %[1]s enable tenant 1 address 192.168.100.11", id)
		}
		config.NamedFunction{PF: id.PF(), VF: id.VF(), Function: to}.SetPortDefaults(r.cfg)
		if c.Action != "" {
			on := c.Action == "enable"
			to.Enabled = &on
		}
		return nil
	}, nil
}

// Recall applies an operator's settings from an earlier run. It is called before there are shards.
func (r *Registry) Recall(id pfvf.ID, c *control.FunctionChange) error {
	edit, err := r.ByOperator(id, c)
	if err != nil {
		return err
	}
	change, err := r.Change(id, edit)
	if err == nil {
		r.Commit(&change)
	}
	return err
}

// A PF sets its VFs by commands. It cannot give more than it has itself: a PF that is not trusted
// gives its VFs its own tenant, at most its own quotas and credit limits, and no trust and no
// guarantee.

func denied(why string) error { return &Refusal{abi.StatusDenied, why} }

// Enable carries out the VFEnable command. A VF without a guest goes to the PF's guest.
func Enable(pf, to *config.Function) error {
	if to.Guest == nil {
		to.Guest = pf.Guest
	}
	on := true
	to.Enabled = &on
	return nil
}

// Disable carries out the VFDisable command.
func Disable(_, to *config.Function) error {
	to.Enabled = new(bool)
	return nil
}

// SetWindow carries out the SetVFWindow command.
func SetWindow(to *config.Function, c *abi.SetVFWindow) {
	to.DMAWindow = nil
	if c.Length != 0 {
		to.DMAWindow = &config.Window{Address: config.Size(c.Address), Size: config.Size(c.Length)}
	}
}

// SetVF carries out the SetVF command.
func SetVF(pf, to *config.Function, c *abi.SetVF) error {
	const known = abi.VFAttrMaxPD<<1 - 1
	has := func(bit uint32) bool { return c.Mask&bit != 0 }
	if c.Mask&^known != 0 || c.Trust > 1 || c.SpoofCheck > 1 || c.Link > abi.LinkDisable {
		return fmt.Errorf("a bit or value that is not defined")
	}
	if has(abi.VFAttrMAC) {
		if c.MAC[0]&1 != 0 || c.MAC == [6]byte{} {
			return fmt.Errorf("mac %x is a group address, or zero", c.MAC)
		}
		to.MAC = c.MAC
	}
	if has(abi.VFAttrTenant) {
		if !pf.Trust && c.Tenant != pf.Tenant {
			return denied("the PF is not trusted and gives its own tenant only")
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
		if !pf.Trust && c.Trust == 1 {
			return denied("the PF is not trusted and cannot give trust")
		}
		to.Trust = c.Trust == 1
	}
	if has(abi.VFAttrSpoofCheck) {
		if !pf.Trust && c.SpoofCheck == 0 {
			return denied("the PF is not trusted and cannot take the spoof check off")
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
			if err := quota(pf, to, q.kind, q.n); err != nil {
				return err
			}
		}
	}
	return nil
}

// SetObjects carries out the SetVFObjects command.
func SetObjects(pf, to *config.Function, c *abi.SetVFObjects) error {
	if c.Mask>>abi.NumObjects != 0 {
		return fmt.Errorf("a bit that is not defined")
	}
	var counts abi.ObjectCounts
	counts.Unmarshal(c.Counts[:])
	for k := range abi.NumObjects {
		if c.Mask>>k&1 == 0 {
			continue
		}
		if err := quota(pf, to, k, *counts.Of(k)); err != nil {
			return err
		}
	}
	return nil
}

// quota sets how many objects of a kind a VF may have.
func quota(pf, to *config.Function, k abi.Object, n uint32) error {
	switch {
	case n == 0:
		return fmt.Errorf("a quota of 0")
	case n > *pf.Limits.Quotas.Of(k) && !pf.Trust:
		return &Refusal{abi.StatusTooLarge, "above the PF's own quota"}
	}
	*to.Limits.Quotas.Of(k) = n
	return nil
}

// SetCredits carries out the SetVFCredits command.
func SetCredits(pf, to *config.Function, c *abi.SetVFCredits) error {
	own := pf.Credits.Cost()
	if c.Mask>>credit.NumCounters != 0 || c.Part > abi.CreditGuarantee {
		return fmt.Errorf("a bit or part that is not defined")
	}
	part := &to.Credits
	if c.Part == abi.CreditGuarantee {
		if !pf.Trust {
			return denied("the PF is not trusted and cannot guarantee credits")
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
		case cost[i] > own[i] && !pf.Trust:
			return &Refusal{abi.StatusTooLarge, "above the PF's own limit"}
		}
	}
	part.SetCost(cost)
	return nil
}

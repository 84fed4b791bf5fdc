package functions

import (
	"maps"
	"slices"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/falcon/cm"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// check refuses a change that needs an address that another function's driver added, or more than
// there is.
func (r *Registry) check(c *Change) error {
	if err := r.unique(c.ID, &c.Is); err != nil {
		return err
	}
	if err := r.tellable(c); err != nil {
		return err
	}
	return r.guaranteed(c)
}

// unique checks that no other function's driver has added one of the addresses.
func (r *Registry) unique(id pfvf.ID, c *config.Function) error {
	for _, a := range c.Addresses() {
		if other, taken := r.gids.owner[address{c.Tenant, a}]; taken && other != id {
			return Refuse(abi.StatusAddressInUse, "%s: address %s of tenant %d is a GID that the driver of %s added; give it another, or have that driver remove it", id, a, c.Tenant, other)
		}
	}
	return nil
}

// tellable checks that there is room to tell each peer all functions and port addresses in the
// tenants shared with it.
func (r *Registry) tellable(c *Change) error {
	was, is := takes(&c.Was), takes(&c.Is)
	if c.Was.Tenant == c.Is.Tenant && is.functions <= was.functions && is.addresses <= was.addresses {
		return nil // no more than before
	}
	for i := range r.cfg.Peers {
		p := &r.cfg.Peers[i]
		n, further := r.shared(p.Tenants)
		if slices.Contains(p.Tenants, c.Was.Tenant) {
			n.functions, n.addresses = n.functions-was.functions, n.addresses-was.addresses
		}
		if slices.Contains(p.Tenants, c.Is.Tenant) {
			n.functions, n.addresses = n.functions+is.functions, n.addresses+is.addresses
		}
		const remedy = "disable another function, or share fewer tenants (peers[].tenants)"
		switch {
		case n.functions+further > cm.MaxEndpoints:
			return Refuse(abi.StatusNoResources, "%s: %d functions and %d GIDs added to them in the tenants shared with host %d, at most %d; %s", c.ID, n.functions, further, p.Host, cm.MaxEndpoints, remedy)
		case n.addresses > cm.MaxPorts:
			return Refuse(abi.StatusNoResources, "%s: %d addresses of ports in the tenants shared with host %d, at most %d; %s", c.ID, n.addresses, p.Host, cm.MaxPorts, remedy)
		}
	}
	return nil
}

// guaranteed checks that every function could still send a packet.
func (r *Registry) guaranteed(c *Change) error {
	if *c.Was.Enabled == *c.Is.Enabled && c.Was.Guarantee == c.Is.Guarantee {
		return nil
	}
	if len(r.guarantee) == 0 && c.Is.Guarantee == (config.Credits{}) {
		return nil
	}
	others := maps.Clone(r.guarantee)
	delete(others, c.ID)
	list := slices.Collect(maps.Values(others))
	if *c.Is.Enabled {
		list = append(list, c.Is.Guarantee)
	}
	without := r.on - len(r.guarantee)
	if *c.Was.Enabled && c.Was.Guarantee == (config.Credits{}) {
		without-- // the function itself is in list, with its new settings
	}
	if without > 0 {
		list = append(list, config.Credits{})
	}
	if err := r.cfg.CheckGuarantees(list); err != nil {
		return Refuse(abi.StatusNoResources, "%s: %v", c.ID, err)
	}
	return nil
}

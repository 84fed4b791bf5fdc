package config

import (
	"net/netip"
	"slices"
)

// Networks holds the virtual networks of a NIC: each tenant with its configured subnets or, if it
// has none, with the subnets around the addresses of its functions.
type Networks struct {
	tenants map[uint32]*Tenant
	given   map[uint32]bool // subnets are configured
	holders map[network]int // number of addresses in each subnet that is not configured
}

type network struct {
	tenant uint32
	prefix netip.Prefix
}

// Networks returns the networks of the configuration, with all its functions.
func (c *Config) Networks() *Networks {
	n := &Networks{tenants: map[uint32]*Tenant{}, given: map[uint32]bool{}, holders: map[network]int{}}
	for _, t := range c.Tenants {
		n.tenants[t.Tenant], n.given[t.Tenant] = &t, len(t.Subnets) > 0
	}
	for _, f := range c.AllFunctions() {
		n.Add(f.Tenant, f.Addresses())
	}
	return n
}

// Add adds the subnets around a function's addresses to its tenant, unless the tenant's subnets are
// configured. It reports whether the tenant changed.
func (n *Networks) Add(tenant uint32, addrs []netip.Addr) (changed bool) {
	if n.given[tenant] {
		return false
	}
	t := n.tenants[tenant]
	if t == nil {
		t = &Tenant{Tenant: tenant}
		n.tenants[tenant] = t
	}
	for _, a := range addrs {
		at := network{tenant, defaultSubnet(a)}
		if n.holders[at]++; n.holders[at] == 1 {
			t.Subnets = append(slices.Clone(t.Subnets), at.prefix)
			changed = true
		}
	}
	return changed
}

// Remove undoes Add.
func (n *Networks) Remove(tenant uint32, addrs []netip.Addr) (changed bool) {
	if n.given[tenant] {
		return false
	}
	t := n.tenants[tenant]
	for _, a := range addrs {
		at := network{tenant, defaultSubnet(a)}
		if n.holders[at]--; n.holders[at] == 0 {
			delete(n.holders, at)
			t.Subnets = slices.DeleteFunc(slices.Clone(t.Subnets), func(p netip.Prefix) bool { return p == at.prefix })
			changed = true
		}
	}
	return changed
}

// Of returns the network of one tenant.
func (n *Networks) Of(tenant uint32) Tenant {
	if t := n.tenants[tenant]; t != nil {
		return *t
	}
	return Tenant{Tenant: tenant}
}

func defaultSubnet(a netip.Addr) netip.Prefix {
	bits := 24
	if a.Is6() {
		bits = 64
	}
	return netip.PrefixFrom(a, bits).Masked()
}

package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Tenant describes a virtual network to the ports in it.
type Tenant struct {
	Tenant  uint32         `yaml:"tenant" use:"1 to 4294967295" default:"required" doc:"a virtual network, as the ports of its functions see it"`
	Subnets []netip.Prefix `yaml:"subnets" default:"/24 and /64 around the functions" doc:"networks that are on-link at every port"`
	Routers []netip.Addr   `yaml:"routers" default:"none" doc:"addresses that the gateway itself answers to at every port; guests learn them by DHCP"`
	DNS     []netip.Addr   `yaml:"dns" default:"none" doc:"name servers, told to guests"`
	Routes  []Route        `yaml:"routes" doc:"networks behind functions, here or at peers"`
}

// Route says that a function of the tenant, here or at a peer, leads to a network.
type Route struct {
	Prefix netip.Prefix `yaml:"prefix" default:"required" doc:"a network behind a function, here or at a peer"`
	Via    netip.Addr   `yaml:"via" default:"required" doc:"an address of that function"`
}

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

// checkTenants checks the descriptions of virtual networks.
func (c *Config) checkTenants(r *report) {
	seen, networks := map[uint32]int{}, c.Networks()
	for i := range c.Tenants {
		t, path := &c.Tenants[i], fmt.Sprintf("tenants[%d]", i)
		switch first, dup := seen[t.Tenant]; {
		case t.Tenant == 0:
			r.add(path+".tenant", "missing or 0", "name the tenant, 1 or above")
		case dup:
			r.add(path+".tenant", fmt.Sprintf("%d is already described in tenants[%d]", t.Tenant, first), "describe each tenant once")
		}
		seen[t.Tenant] = i
		c.checkTenant(r, path, t, networks.Of(t.Tenant))
	}
}

func (c *Config) checkTenant(r *report, path string, t *Tenant, whole Tenant) {
	for i, p := range t.Subnets {
		q := fmt.Sprintf("%s.subnets[%d]", path, i)
		switch {
		case p.Bits() < 8 || p.Addr().IsMulticast() || p.Addr().IsLinkLocalUnicast():
			r.add(q, fmt.Sprintf("%s cannot be a tenant's subnet", p), "write it as 192.168.100.0/24 or fd00:100::/64")
		case p != p.Masked():
			r.add(q, fmt.Sprintf("%s has bits set after its prefix length", p), fmt.Sprintf("write %s", p.Masked()))
		}
		for j, o := range t.Subnets[:i] {
			if o.Overlaps(p) {
				r.add(q, fmt.Sprintf("%s overlaps subnets[%d]", p, j), "give each network once")
			}
		}
	}
	for i, a := range t.Routers {
		q := fmt.Sprintf("%s.routers[%d]", path, i)
		if !whole.contains(a) {
			r.add(q, fmt.Sprintf("%s is in none of the tenant's subnets", a), "use a free address of a subnet, as 192.168.100.1")
		}
	}
	for i, a := range t.DNS {
		if !usable(a) {
			r.add(fmt.Sprintf("%s.dns[%d]", path, i), fmt.Sprintf("%s cannot be a server's address", a), "write it as 192.168.100.53")
		}
	}
	for i, a := range t.Routes {
		q := fmt.Sprintf("%s.routes[%d]", path, i)
		switch {
		case !a.Prefix.IsValid() || a.Prefix != a.Prefix.Masked():
			r.add(q+".prefix", "missing, or has bits set after its prefix length", "write it as 10.1.0.0/16")
		case !usable(a.Via) || a.Via.Is4() != a.Prefix.Addr().Is4():
			r.add(q+".via", "missing, or not an address of the prefix's IP version", "name an address of the function that leads there, as 192.168.100.11")
		}
		if slices.ContainsFunc(t.Routes[:i], func(b Route) bool { return b.Prefix == a.Prefix }) {
			r.add(q+".prefix", fmt.Sprintf("%s is listed twice", a.Prefix), "a network is behind one function")
		}
	}
	slices.SortStableFunc(t.Routes, func(a, b Route) int { return cmp.Compare(b.Prefix.Bits(), a.Prefix.Bits()) })
}

func (t *Tenant) contains(a netip.Addr) bool {
	return slices.ContainsFunc(t.Subnets, func(p netip.Prefix) bool { return p.Contains(a) })
}

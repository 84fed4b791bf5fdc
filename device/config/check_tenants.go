package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// checkTenants checks the descriptions of virtual networks.
func (c *Config) checkTenants(r *report) {
	seen, networks := map[uint32]int{}, c.Networks()
	for i := range c.Tenants {
		t, path := &c.Tenants[i], fmt.Sprintf("tenants[%d]", i)
		switch first, dup := seen[t.Tenant]; {
		case t.Tenant == 0:
			r.add(path+".tenant", "missing or 0", "name the tenant, 1 or above")
		case dup:
			r.add(path+".tenant", fmt.Sprintf("%d is already tenants[%d]", t.Tenant, first), "describe each tenant once")
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
			r.add(q, fmt.Sprintf("%s has bits behind its length", p), fmt.Sprintf("write %s", p.Masked()))
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
			r.add(q+".prefix", "missing, or has bits behind its length", "write it as 10.1.0.0/16")
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

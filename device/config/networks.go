package config

import "net/netip"

// Networks are the virtual networks of a NIC: each tenant as the configuration describes it, or else
// with the subnets around its functions' addresses.
type Networks struct {
	tenants map[uint32]*Tenant
	given   map[uint32]bool // subnets are configured
	seen    map[network]bool
}

type network struct {
	tenant uint32
	prefix netip.Prefix
}

// Networks returns those of the configuration, with all its functions.
func (c *Config) Networks() *Networks {
	n := &Networks{tenants: map[uint32]*Tenant{}, given: map[uint32]bool{}, seen: map[network]bool{}}
	for _, t := range c.Tenants {
		n.tenants[t.Tenant], n.given[t.Tenant] = &t, len(t.Subnets) > 0
	}
	for _, f := range c.AllFunctions() {
		n.Add(f.Tenant, f.Addresses())
	}
	return n
}

// Add adds the networks around a function's addresses to its tenant's, unless those are configured.
func (n *Networks) Add(tenant uint32, addrs []netip.Addr) {
	if n.given[tenant] {
		return
	}
	t := n.tenants[tenant]
	if t == nil {
		t = &Tenant{Tenant: tenant}
		n.tenants[tenant] = t
	}
	for _, a := range addrs {
		p := defaultSubnet(a)
		if at := (network{tenant, p}); !n.seen[at] {
			n.seen[at] = true
			t.Subnets = append(t.Subnets, p)
		}
	}
}

// Of returns one tenant's.
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

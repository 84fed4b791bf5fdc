package controller

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// plain holds the routes of plain IP, for the gateways of all shards.
type plain struct {
	routes   *gateway.Routes
	networks *config.Networks
	ports    map[uint32]gateway.Place // by function
	users    map[uint32]int           // number of ports of each tenant
	untold   bool                     // peers have not been told of the last change
}

func newPlain(c *config.Config) plain {
	return plain{
		routes:   gateway.NewRoutes(c.Uplink.MTU - c.SealedOverhead()),
		networks: c.Networks(), ports: map[uint32]gateway.Place{}, users: map[uint32]int{},
	}
}

// set records the place of a function's port, and adds the networks of its addresses to the tenant.
func (p *plain) set(function uint32, at gateway.Place) {
	old, had := p.ports[function]
	p.ports[function], p.untold = at, true
	p.users[at.Tenant]++
	changed := p.networks.Add(at.Tenant, at.Addresses)
	if had {
		changed = p.leave(&old) || changed
	}
	if changed || p.users[at.Tenant] == 1 {
		p.describe(at.Tenant)
	}
	p.routes.SetPort(function, at)
}

// remove removes the port of a function.
func (p *plain) remove(function uint32) {
	if old, had := p.ports[function]; had {
		delete(p.ports, function)
		p.untold = true
		p.routes.RemovePort(function)
		p.leave(&old)
	}
}

// leave removes a port from its tenant, and reports whether the tenant's networks changed.
func (p *plain) leave(at *gateway.Place) (changed bool) {
	changed = p.networks.Remove(at.Tenant, at.Addresses)
	if p.users[at.Tenant]--; p.users[at.Tenant] == 0 {
		delete(p.users, at.Tenant)
		p.routes.ForgetTenant(at.Tenant)
	} else if changed {
		p.describe(at.Tenant)
	}
	return changed
}

// describe gives the network of a tenant to the routes.
func (p *plain) describe(tenant uint32) {
	t := p.networks.Of(tenant)
	g := gateway.TenantConfig{Tenant: t.Tenant, Subnets: t.Subnets, Routers: t.Routers, DNS: t.DNS}
	for _, r := range t.Routes {
		g.Routes = append(g.Routes, gateway.Route(r))
	}
	p.routes.SetTenant(g)
}

// addresses lists the addresses that peers may send plain IP to.
func (p *plain) addresses() (list []cm.PortAddress) {
	for _, fn := range slices.Sorted(maps.Keys(p.ports)) {
		at := p.ports[fn]
		if !at.Up {
			continue
		}
		for _, a := range at.Addresses {
			list = append(list, cm.PortAddress{Tenant: at.Tenant, Addr: a.As16(), Function: fn, MTU: uint32(at.MTU)})
		}
	}
	return list
}

// portsChanged computes the routes to a peer's ports again.
func (k *Core) portsChanged(_ vtime.Time, peer cm.PeerID) {
	var addrs []gateway.Address
	mtu := k.pathMTU(peer) - k.cfg.NIC.SealedOverhead()
	for _, p := range k.Manager.CM.PortsOf(peer) {
		a := netip.AddrFrom16(p.Addr).Unmap()
		addrs = append(addrs, gateway.Address{Tenant: p.Tenant, Addr: a, Function: p.Function, MTU: min(int(p.MTU), mtu)})
	}
	k.plain.routes.Learn(peer, addrs)
	k.all(func(to Orders, now vtime.Time) { to.PeerPorts(now, peer) })
}

// Routes lists the routes of plain IP. Whether there is a key for a peer is known to the shards.
func (k *Core) Routes() (list []control.Route) {
	for _, e := range k.plain.routes.Entries() {
		r := control.Route{Tenant: e.Tenant, Prefix: e.Prefix.String(), Kind: "none", MTU: e.To.MTU}
		if e.Via.IsValid() {
			r.Via = e.Via.String()
		}
		switch {
		case e.None:
		case e.To.Kind == gateway.ToRouter:
			r.Kind = "router"
		case e.To.Kind == gateway.ToPort:
			r.Kind, r.Port = "port", e.Port
		case e.To.Kind == gateway.ToPeer:
			r.Kind = "peer"
			p, _, _ := k.Manager.CM.PeerOf(e.To.Peer)
			r.Peer, r.PeerName = p.Host, p.Name
		}
		list = append(list, r)
	}
	return list
}

// Routes returns the routes of the NIC. A gateway reads them on its shard's thread.
func (c *ShardLink) Routes() *gateway.Routes { return c.core.plain.routes }

// SetPort records the place of a function's port.
func (c *ShardLink) SetPort(function uint32, at gateway.Place) {
	c.post(func(k *Core, _ vtime.Time) { k.plain.set(function, at) })
}

// RemovePort removes the port of a function.
func (c *ShardLink) RemovePort(function uint32) {
	c.post(func(k *Core, _ vtime.Time) { k.plain.remove(function) })
}

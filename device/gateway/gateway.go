package gateway

import (
	"net/netip"
	"reflect"
	"slices"
)

// MAC is an Ethernet address.
type MAC = [6]byte

// TenantConfig is a virtual network as its ports see it.
type TenantConfig struct {
	Tenant  uint32
	Subnets []netip.Prefix // on-link at every port
	Routers []netip.Addr   // addresses that every port's gateway has
	DNS     []netip.Addr
	Routes  []Route
}

// Route says that the function with the address Via leads to a network.
type Route struct {
	Prefix netip.Prefix
	Via    netip.Addr
}

// target is what an address leads to: a port of ours, a tunnel, or the gateway itself.
type target struct {
	port   *Endpoint
	tunnel *Tunnel
	router bool
	mtu    int // longest packet it takes
}

// tenant is a virtual network.
type tenant struct {
	TenantConfig
	addrs   map[netip.Addr]target
	tunnels map[uint8]*Tunnel // by peer
}

// Gateway carries plain IP between the ports of a NIC and its peers. See the package comment.
type Gateway struct {
	Panicked func(v any, frame []byte) // is told of a frame that this code could not take; nil: nobody is

	shard   uint8 // that it belongs to
	mtu     int   // of tunnels, by our own uplink
	tenants map[uint32]*tenant
	ports   []*Endpoint
	byFunc  map[uint32]*Endpoint
	peers   map[uint8]Peer
	learned map[uint8][]Address      // by peer
	refused map[uint8]map[place]bool // the same
	holds   bool                     // more changes are to come before the tables are made anew
	stale   bool
	taken   taken
	replies replies
	out     output
	last    cache
	stats   Stats
}

// New returns a shard's gateway without ports. mtu is the longest packet that fits a sealed frame on
// the uplink.
func New(shard uint8, mtu int) *Gateway {
	g := &Gateway{
		shard: shard, mtu: mtu, tenants: map[uint32]*tenant{}, byFunc: map[uint32]*Endpoint{},
		peers: map[uint8]Peer{}, learned: map[uint8][]Address{}, refused: map[uint8]map[place]bool{},
	}
	g.out.init()
	return g
}

// SetTenant describes a virtual network. Ports of a tenant without a description are in a network
// without subnets.
func (g *Gateway) SetTenant(c TenantConfig) {
	c.Routes = slices.Clone(c.Routes)
	slices.SortStableFunc(c.Routes, func(a, b Route) int { return b.Prefix.Bits() - a.Prefix.Bits() })
	g.tenant(c.Tenant).TenantConfig = c
}

func (g *Gateway) tenant(n uint32) *tenant {
	t := g.tenants[n]
	if t == nil {
		t = &tenant{TenantConfig: TenantConfig{Tenant: n}, addrs: map[netip.Addr]target{}, tunnels: map[uint8]*Tunnel{}}
		g.tenants[n] = t
	}
	return t
}

// AddEndpoint adds a port, which is down. mac is what its guest sees of all other stations.
func (g *Gateway) AddEndpoint(name string, function uint32, mac MAC) *Endpoint {
	p := &Endpoint{Name: name, Function: function, Gateway: mac, tenant: g.tenant(0)}
	g.ports = append(g.ports, p)
	g.byFunc[function] = p
	return p
}

// RemoveEndpoint takes a port out. Frames for it that wait stay until Output.
func (g *Gateway) RemoveEndpoint(p *Endpoint) {
	p.up = false
	g.ports = slices.DeleteFunc(g.ports, func(q *Endpoint) bool { return q == p })
	if g.byFunc[p.Function] == p {
		delete(g.byFunc, p.Function)
	}
	g.rebuild()
}

// Configure changes what a port is, and whether it takes part in the network.
func (g *Gateway) Configure(p *Endpoint, c EndpointConfig, up bool) {
	if p.up == up && p.tenant == g.tenant(c.Tenant) && reflect.DeepEqual(p.EndpointConfig, c) {
		return
	}
	if p.MAC != c.MAC {
		p.mac = c.MAC
	}
	p.EndpointConfig, p.up, p.tenant = c, up, g.tenant(c.Tenant)
	g.rebuild()
}

// Up tells whether a function has an endpoint that takes part.
func (g *Gateway) Up(function uint32) bool {
	p := g.byFunc[function]
	return p != nil && p.up
}

// Endpoints lists them. The slice is the gateway's.
func (g *Gateway) Endpoints() []*Endpoint { return g.ports }

// Stats returns the counters, which move.
func (g *Gateway) Stats() *Stats { return &g.stats }

func (g *Gateway) sorted() []*tenant {
	list := make([]*tenant, 0, len(g.tenants))
	for _, t := range g.tenants {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b *tenant) int { return int(int64(a.Tenant) - int64(b.Tenant)) })
	return list
}

// Update makes several changes, and the tables anew once for all of them.
func (g *Gateway) Update(changes func()) {
	g.holds = true
	changes()
	g.holds = false
	if g.stale {
		g.rebuild()
	}
}

// rebuild makes the tables anew. Our own ports come first, then routers, then the peers in the
// order of their numbers: nobody takes another's address.
func (g *Gateway) rebuild() {
	if g.stale = g.holds; g.stale {
		return
	}
	g.last = cache{}
	for _, t := range g.tenants {
		clear(t.addrs)
	}
	put := func(t *tenant, a netip.Addr, to target) {
		if _, taken := t.addrs[a]; !taken {
			t.addrs[a] = to
		}
	}
	for _, p := range g.ports {
		for _, a := range p.Addresses {
			if p.up {
				put(p.tenant, a, target{port: p, mtu: p.MTU})
			}
		}
	}
	for _, t := range g.tenants {
		for _, a := range t.Routers {
			put(t, a, target{router: true})
		}
	}
	peers := make([]uint8, 0, len(g.learned))
	for h := range g.learned {
		peers = append(peers, h)
	}
	slices.Sort(peers)
	for _, h := range peers {
		for _, a := range g.learned[h] {
			if t := g.tenants[a.Tenant]; t != nil {
				put(t, a.Addr, target{tunnel: g.tunnel(t, h), mtu: min(g.mtu, a.MTU)})
			}
		}
	}
}

// find returns where packets to a go.
func (t *tenant) find(a netip.Addr) (target, bool) {
	if to, ok := t.addrs[a]; ok {
		return to, true
	}
	for i := range t.Routes {
		if r := &t.Routes[i]; r.Prefix.Contains(a) {
			to, ok := t.addrs[r.Via]
			return to, ok
		}
	}
	return target{}, false
}

// EndpointOf is the one of ours that a packet of a tenant comes from or, unless out, is for; nil: none.
func (g *Gateway) EndpointOf(tenant uint32, packet []byte, out bool) *Endpoint {
	t := g.tenants[tenant]
	h, why := parseIP(packet)
	if t == nil || why != none {
		return nil
	}
	a := h.dst
	if out {
		a = h.src
	}
	to, _ := t.find(a)
	return to.port
}

// onLink tells whether a is in one of the tenant's subnets.
func (t *tenant) onLink(a netip.Addr) bool {
	for _, p := range t.Subnets {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// router returns the address our errors come from, if the tenant has one of the family.
func (t *tenant) router(v6 bool) (netip.Addr, bool) {
	for _, a := range t.Routers {
		if a.Is6() == v6 {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// Entry is one line of the table of routes.
type Entry struct {
	Tenant   uint32
	Prefix   netip.Prefix
	Via      netip.Addr // of routes behind a function
	Endpoint *Endpoint  // ours
	Tunnel   *Tunnel    // a peer's
	Router   bool       // the gateway itself
	MTU      int        // longest packet
}

// Table lists all routes in a fixed order.
func (g *Gateway) Table() (list []Entry) {
	for _, t := range g.sorted() {
		for a, to := range t.addrs {
			list = append(list, Entry{Tenant: t.Tenant, Prefix: netip.PrefixFrom(a, a.BitLen()), Endpoint: to.port, Tunnel: to.tunnel, Router: to.router, MTU: to.mtu})
		}
		for _, r := range t.Routes {
			to := t.addrs[r.Via]
			list = append(list, Entry{Tenant: t.Tenant, Prefix: r.Prefix, Via: r.Via, Endpoint: to.port, Tunnel: to.tunnel, MTU: to.mtu})
		}
	}
	slices.SortStableFunc(list, func(a, b Entry) int {
		switch {
		case a.Tenant != b.Tenant:
			return int(int64(a.Tenant) - int64(b.Tenant))
		case a.Prefix.Addr() != b.Prefix.Addr():
			return a.Prefix.Addr().Compare(b.Prefix.Addr())
		}
		return b.Prefix.Bits() - a.Prefix.Bits()
	})
	return list
}

// drop counts, at the port too.
func (g *Gateway) drop(p *Endpoint, why Reason) {
	g.stats.Reasons[why]++
	if p != nil {
		p.Drops[why]++
	}
}

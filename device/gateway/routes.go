package gateway

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/table"
)

// Routes says where each address of each tenant is: at a port of this NIC, at a peer, or at the
// gateway itself. A NIC has one Routes. Its owner changes it while the gateways of all shards read
// it without a lock. The cost of a change does not depend on the number of ports.
type Routes struct {
	mtu      int // of tunnels, limited by this NIC's uplink
	changes  atomic.Uint64
	plugged  atomic.Int64 // number of ports
	networks *table.Table[uint32, *network]

	// Of the owner:
	described map[uint32]bool
	ports     map[uint32]Place // by function
	learned   map[cm.PeerID]map[place]Target
	followers []*Follower
}

// Place says where a function's port is in its tenant's network.
type Place struct {
	Name      string
	Shard     uint8
	Tenant    uint32
	Addresses []netip.Addr
	MTU       int  // bytes of IP packet
	Up        bool // the port takes part: its addresses lead to it
}

// Address is an address that a peer announced, with its function.
type Address struct {
	Tenant   uint32
	Addr     netip.Addr
	Function uint32
	MTU      int // of its port, bytes of IP packet
}

// place is an address in a tenant.
type place struct {
	tenant uint32
	addr   netip.Addr
}

// NewRoutes returns routes that know no addresses yet. mtu is the longest packet that fits a sealed
// frame on the uplink.
func NewRoutes(mtu int) *Routes {
	return &Routes{
		mtu: mtu, networks: table.New[uint32, *network](), described: map[uint32]bool{}, ports: map[uint32]Place{},
		learned: map[cm.PeerID]map[place]Target{},
	}
}

// network returns a tenant's network, or the empty network nowhere. Any goroutine may call it.
func (r *Routes) network(tenant uint32) *network {
	if n, ok := r.networks.Find(tenant); ok {
		return n
	}
	return nowhere
}

// open returns a tenant's network and creates it if needed.
func (r *Routes) open(tenant uint32) *network {
	n, ok := r.networks.Find(tenant)
	if !ok {
		n = newNetwork(tenant)
		r.networks.Set(tenant, n)
	}
	return n
}

// tidy deletes a network that has no ports, description or addresses.
func (r *Routes) tidy(n *network) {
	r.changes.Add(1)
	if n.users == 0 && len(n.claims) == 0 {
		r.networks.Delete(n.tenant)
	}
}

// SetTenant sets the description of a virtual network. Without one, a tenant's network has no
// subnets.
func (r *Routes) SetTenant(c TenantConfig) {
	r.tell(RouteChange{Tenant: &c})
	r.setTenant(c)
}

func (r *Routes) setTenant(c TenantConfig) {
	n := r.open(c.Tenant)
	if !r.described[c.Tenant] {
		r.described[c.Tenant] = true
		n.users++
	}
	c.Routes = slices.Clone(c.Routes)
	slices.SortStableFunc(c.Routes, func(a, b Route) int { return b.Prefix.Bits() - a.Prefix.Bits() })
	old := n.config.Load()
	if reflect.DeepEqual(old, &c) {
		return
	}
	n.config.Store(&c)
	for _, a := range c.Routers { // first: what stays is there at all times
		n.claim(a, Target{Kind: ToRouter})
	}
	for _, a := range old.Routers {
		n.disclaim(a, Target{Kind: ToRouter})
	}
	r.changes.Add(1)
}

// ForgetTenant removes the description of a network.
func (r *Routes) ForgetTenant(tenant uint32) {
	if !r.described[tenant] {
		return
	}
	r.tell(RouteChange{Forget: &tenant})
	r.setTenant(TenantConfig{Tenant: tenant})
	delete(r.described, tenant)
	n := r.open(tenant)
	n.users--
	r.tidy(n)
}

// SetPort sets where a function's port is.
func (r *Routes) SetPort(function uint32, p Place) {
	old, had := r.ports[function]
	if had && reflect.DeepEqual(old, p) {
		return
	}
	p.Addresses = slices.Clone(p.Addresses)
	r.tell(RouteChange{Port: &PlacedPort{function, p}})
	n := r.open(p.Tenant)
	n.users++
	for _, a := range p.led() { // first: what stays is there at all times
		n.claim(a, p.target(function))
	}
	if had {
		r.leave(function, &old)
	}
	r.ports[function] = p
	r.plugged.Store(int64(len(r.ports)))
	r.changes.Add(1)
}

// led returns the addresses that lead to the port.
func (p *Place) led() []netip.Addr {
	if !p.Up {
		return nil
	}
	return p.Addresses
}

func (p *Place) target(function uint32) Target {
	return Target{Kind: ToPort, Shard: p.Shard, Function: function, MTU: p.MTU}
}

// NoPorts reports whether no function of the NIC has a port. Any goroutine may call it.
func (r *Routes) NoPorts() bool { return r.plugged.Load() == 0 }

// RemovePort removes a function's port.
func (r *Routes) RemovePort(function uint32) {
	if p, had := r.ports[function]; had {
		r.tell(RouteChange{Unplug: &function})
		delete(r.ports, function)
		r.plugged.Store(int64(len(r.ports)))
		r.leave(function, &p)
	}
}

func (r *Routes) leave(function uint32, p *Place) {
	n := r.open(p.Tenant)
	for _, a := range p.led() {
		n.disclaim(a, p.target(function))
	}
	n.users--
	r.tidy(n)
}

// Learn replaces the known addresses of a peer's functions.
func (r *Routes) Learn(peer cm.PeerID, addrs []Address) {
	r.tell(RouteChange{Learn: &Learned{peer, addrs}})
	before, now := r.learned[peer], map[place]Target{}
	for _, a := range addrs {
		at := place{a.Tenant, a.Addr}
		if _, twice := now[at]; !twice {
			now[at] = Target{Kind: ToPeer, Peer: peer, Function: a.Function, MTU: min(r.mtu, a.MTU)}
		}
	}
	if r.learned[peer] = now; len(now) == 0 {
		delete(r.learned, peer)
	}
	for at, to := range now {
		if before[at] != to {
			r.open(at.tenant).claim(at.addr, to)
		}
	}
	for at, to := range before {
		if now[at] != to {
			n := r.open(at.tenant)
			n.disclaim(at.addr, to)
			r.tidy(n)
		}
	}
	r.changes.Add(1)
}

// Reaches reports whether a peer has an address in a tenant. Any goroutine may call it.
func (r *Routes) Reaches(peer cm.PeerID, tenant uint32) bool { return r.network(tenant).reaches(peer) }

// FunctionOf returns the function of this NIC that a tenant's packet comes from (out) or is for.
func (r *Routes) FunctionOf(tenant uint32, packet []byte, out bool) (function uint32, ok bool) {
	h, why := parseIP(packet)
	if why != none {
		return 0, false
	}
	a := h.dst
	if out {
		a = h.src
	}
	to, ok := r.network(tenant).find(a)
	return to.Function, ok && to.Kind == ToPort
}

// Entry is one line of the table of routes.
type Entry struct {
	Tenant uint32
	Prefix netip.Prefix
	Via    netip.Addr // of routes through a function
	To     Target
	Port   string // name of the port that To leads to, if any
	None   bool   // no one has the address Via
}

// Entries lists all routes in a fixed order.
func (r *Routes) Entries() (list []Entry) {
	r.networks.Each(func(tenant uint32, n *network) {
		n.addrs.Each(func(a netip.Addr, to Target) {
			list = append(list, Entry{Tenant: tenant, Prefix: netip.PrefixFrom(a, a.BitLen()), To: to, Port: r.ports[to.Function].Name})
		})
		for _, route := range n.config.Load().Routes {
			to, ok := n.addrs.Find(route.Via)
			list = append(list, Entry{Tenant: tenant, Prefix: route.Prefix, Via: route.Via, To: to, Port: r.ports[to.Function].Name, None: !ok})
		}
	})
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

// TenantConfig describes a virtual network to its ports.
type TenantConfig struct {
	Tenant  uint32
	Subnets []netip.Prefix // on-link at every port
	Routers []netip.Addr   // router addresses, which the gateway has at every port
	DNS     []netip.Addr
	Routes  []Route
}

// Route says that a network is reached through the function with the address Via.
type Route struct {
	Prefix netip.Prefix
	Via    netip.Addr
}

// Kind says what an address leads to.
type Kind uint8

// Kinds, in order of precedence when several claim an address: a peer cannot take over an address
// of this NIC.
const (
	ToPort   Kind = iota // of a function of this NIC
	ToRouter             // the gateway itself
	ToPeer               // another NIC
)

// Target is where an address leads to.
type Target struct {
	Kind     Kind
	Shard    uint8     // of the port
	Peer     cm.PeerID // of ToPeer
	Function uint32    // that has the address; 0: the gateway
	MTU      int       // of the path, bytes of IP packet
}

// compare orders those that claim an address: the first one has it.
func (t Target) compare(u Target) int {
	return cmp.Or(cmp.Compare(t.Kind, u.Kind), cmp.Compare(t.Peer, u.Peer), cmp.Compare(t.Function, u.Function))
}

// network is a tenant's virtual network. The owner of Routes changes it; gateways read config,
// addrs and peers.
type network struct {
	tenant uint32
	config atomic.Pointer[TenantConfig]
	addrs  *table.Table[netip.Addr, Target]
	peers  atomic.Pointer[[]cm.PeerID] // that have addresses in the network, ascending

	claims map[netip.Addr][]Target // the first has the address
	byPeer map[cm.PeerID]int       // number of addresses of each peer
	users  int                     // number of ports, with or without an address, plus 1 if the network is described
}

func newNetwork(tenant uint32) *network {
	n := &network{tenant: tenant, addrs: table.New[netip.Addr, Target](), claims: map[netip.Addr][]Target{}, byPeer: map[cm.PeerID]int{}}
	n.config.Store(&TenantConfig{Tenant: tenant})
	n.peers.Store(&[]cm.PeerID{})
	return n
}

// nowhere is the network of ports whose tenant has no network yet.
var nowhere = newNetwork(0)

// find returns where packets to a go.
func (n *network) find(a netip.Addr) (Target, bool) {
	if to, ok := n.addrs.Find(a); ok {
		return to, true
	}
	for i, routes := 0, n.config.Load().Routes; i < len(routes); i++ {
		if r := &routes[i]; r.Prefix.Contains(a) {
			return n.addrs.Find(r.Via)
		}
	}
	return Target{}, false
}

// onLink reports whether a is in one of the tenant's subnets.
func (n *network) onLink(a netip.Addr) bool {
	for _, p := range n.config.Load().Subnets {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// router returns the tenant's first router address of the family, from which errors are sent.
func (n *network) router(v6 bool) (netip.Addr, bool) {
	for _, a := range n.config.Load().Routers {
		if a.Is6() == v6 {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// claim adds to as a claimant of the address a.
func (n *network) claim(a netip.Addr, to Target) {
	list := n.claims[a]
	at, _ := slices.BinarySearchFunc(list, to, Target.compare)
	n.claims[a] = slices.Insert(list, at, to)
	if at == 0 {
		n.addrs.Set(a, to)
	}
	if to.Kind == ToPeer {
		if n.byPeer[to.Peer]++; n.byPeer[to.Peer] == 1 {
			n.listPeer(to.Peer)
		}
	}
}

// disclaim removes a claim.
func (n *network) disclaim(a netip.Addr, to Target) {
	list := n.claims[a]
	at := slices.Index(list, to)
	if at < 0 {
		return
	}
	list = slices.Delete(list, at, at+1)
	switch n.claims[a] = list; {
	case len(list) == 0:
		delete(n.claims, a)
		n.addrs.Delete(a)
	case at == 0:
		n.addrs.Set(a, list[0])
	}
	if to.Kind == ToPeer {
		if n.byPeer[to.Peer]--; n.byPeer[to.Peer] == 0 {
			delete(n.byPeer, to.Peer)
			n.unlistPeer(to.Peer)
		}
	}
}

// listPeer adds a peer to those that have addresses in the network. Gateways read the list meanwhile, so
// it is replaced, as by unlistPeer.
func (n *network) listPeer(peer cm.PeerID) {
	list := *n.peers.Load()
	at, _ := slices.BinarySearch(list, peer)
	list = slices.Concat(list[:at], []cm.PeerID{peer}, list[at:])
	n.peers.Store(&list)
}

func (n *network) unlistPeer(peer cm.PeerID) {
	list := *n.peers.Load()
	at, _ := slices.BinarySearch(list, peer)
	list = slices.Concat(list[:at], list[at+1:])
	n.peers.Store(&list)
}

// reaches reports whether a peer has an address in the network.
func (n *network) reaches(peer cm.PeerID) bool {
	_, has := slices.BinarySearch(*n.peers.Load(), peer)
	return has
}

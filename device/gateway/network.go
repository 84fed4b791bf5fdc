package gateway

import (
	"cmp"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/internal/table"
)

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
	Shard    uint8  // of the port
	Peer     uint8  // of ToPeer
	Function uint32 // that has the address; 0: the gateway
	MTU      int    // of the path, bytes of IP packet
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
	peers  atomic.Pointer[[]uint8] // that have addresses in the network, ascending

	claims map[netip.Addr][]Target // the first has the address
	byPeer map[uint8]int           // number of addresses of each peer
	users  int                     // number of ports, with or without an address, plus 1 if the network is described
}

func newNetwork(tenant uint32) *network {
	n := &network{tenant: tenant, addrs: table.New[netip.Addr, Target](), claims: map[netip.Addr][]Target{}, byPeer: map[uint8]int{}}
	n.config.Store(&TenantConfig{Tenant: tenant})
	n.peers.Store(&[]uint8{})
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
			n.listPeers()
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
			n.listPeers()
		}
	}
}

func (n *network) listPeers() {
	list := make([]uint8, 0, len(n.byPeer))
	for h := range n.byPeer {
		list = append(list, h)
	}
	slices.Sort(list)
	n.peers.Store(&list)
}

// reaches reports whether a peer has an address in the network.
func (n *network) reaches(peer uint8) bool { return slices.Contains(*n.peers.Load(), peer) }

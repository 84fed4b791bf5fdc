package gateway

import "net/netip"

// Peer is another NIC.
type Peer struct {
	Host     uint8
	Underlay netip.Addr
	// Allows tells whether the peer may have a function with this address in a tenant; nil: any.
	Allows func(tenant uint32, a netip.Addr) bool
}

// Address is where a peer's function is.
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

// AddPeer makes a peer known.
func (g *Gateway) AddPeer(p Peer) { g.peers[p.Host] = p }

// Learn replaces what is known of a peer's functions. It returns those that the peer may not have,
// and that it did not name last time.
func (g *Gateway) Learn(peer uint8, addrs []Address) (refused []Address) {
	allows, before := g.peers[peer].Allows, g.refused[peer]
	now, good := map[place]bool{}, make([]Address, 0, len(addrs))
	for _, a := range addrs {
		if allows == nil || allows(a.Tenant, a.Addr) {
			good = append(good, a)
			continue
		}
		g.stats.AddressesRefused++
		p := place{a.Tenant, a.Addr}
		if now[p] = true; !before[p] {
			refused = append(refused, a)
		}
	}
	g.learned[peer], g.refused[peer] = good, now
	g.rebuild()
	return refused
}

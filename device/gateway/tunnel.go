package gateway

import (
	"net/netip"

	"github.com/falcon-vnic/vnic/device/security"
)

// reach identifies a tunnel.
type reach struct {
	peer   uint8
	tenant uint32
}

// Tunnel leads to a peer's functions in a tenant.
type Tunnel struct {
	Peer     uint8
	Tenant   uint32
	Underlay netip.Addr // of the peer

	asked bool           // the peer was asked for a key
	tx    *security.TxSA // nil: no key yet
}

// flow returns the number that packets from the peer are charged to. It is not a function's number,
// since those begin with this NIC's host number.
func (t *Tunnel) flow() uint32 { return uint32(t.Peer) << 16 }

// Sealed reports whether the peer has given a key.
func (t *Tunnel) Sealed() bool { return t.tx != nil }

// Tunnels holds the tunnels of a shard, with the keys that peers gave for them.
type Tunnels struct {
	shard  uint8
	routes *Routes
	list   map[reach]*Tunnel
	stats  *Stats // the gateway's
}

func (ts *Tunnels) init(shard uint8, routes *Routes, stats *Stats) {
	*ts = Tunnels{shard: shard, routes: routes, list: map[reach]*Tunnel{}, stats: stats}
}

// To returns the tunnel to a peer in a tenant, or nil when the peer has no address in the tenant.
func (ts *Tunnels) To(peer uint8, tenant uint32) *Tunnel {
	t := ts.list[reach{peer, tenant}]
	if t == nil && ts.routes.Reaches(peer, tenant) {
		t = &Tunnel{Peer: peer, Tenant: tenant, Underlay: ts.routes.peers[peer].Underlay}
		ts.list[reach{peer, tenant}] = t
	}
	return t
}

// Each calls f for each tunnel.
func (ts *Tunnels) Each(f func(*Tunnel)) {
	for _, t := range ts.list {
		f(t)
	}
}

package gateway

import (
	"net/netip"

	"github.com/falcon-vnic/vnic/device/security"
)

// reach names a tunnel.
type reach struct {
	peer   uint8
	tenant uint32
}

// Tunnel is where packets for a peer's functions in a tenant go.
type Tunnel struct {
	Peer     uint8
	Tenant   uint32
	Underlay netip.Addr // of the peer

	asked bool           // the peer for a key
	tx    *security.TxSA // nil: no key yet
}

// flow is the number that what comes from the peer is charged to: none of a function here, whose
// numbers have this NIC's host in front.
func (t *Tunnel) flow() uint32 { return uint32(t.Peer) << 16 }

// Sealed tells whether the peer has given us a key.
func (t *Tunnel) Sealed() bool { return t.tx != nil }

// Tunnels are those of a shard, with the keys that peers gave for them.
type Tunnels struct {
	shard  uint8
	routes *Routes
	list   map[reach]*Tunnel
	stats  *Stats // the gateway's
}

func (ts *Tunnels) init(shard uint8, routes *Routes, stats *Stats) {
	*ts = Tunnels{shard: shard, routes: routes, list: map[reach]*Tunnel{}, stats: stats}
}

// To returns the tunnel to a peer in a tenant, nil when no address of the peer's needs one.
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

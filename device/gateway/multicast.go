package gateway

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

// Multicast is carried for RoCEv2 of the functions themselves alone, between all of a tenant's that
// speak it: each looks at its groups itself. A peer gets one copy, and the gateway there shares it
// out.
//
//	function ─▶ FromFunction ─┬─▶ NextCopy: a tunnel to each peer of the tenant ─▶ FromTunnel ┐
//	                          └─▶ functions of this NIC, the sender too  ◀───────────────────┘
//
// What guests send to groups through their ports is not carried.

// audience is who hears the multicast of a tenant.
type audience struct {
	here   []*Endpoint // of this shard
	beyond []Target    // of other shards
	peers  []uint8
}

// audiences are those found in an epoch.
type audiences struct {
	epoch
	of map[uint32]*audience // by tenant
}

// hear finds who hears a tenant's multicast. What was found holds until anything changes.
func (as *audiences) hear(g *Gateway, n *network) *audience {
	if now := g.epoch(); as.of == nil || as.epoch != now {
		*as = audiences{now, map[uint32]*audience{}}
	}
	a := as.of[n.tenant]
	if a == nil {
		a = gather(n, g.ports, g.shard)
		as.of[n.tenant] = a
	}
	return a
}

func gather(n *network, ports []*Endpoint, shard uint8) *audience {
	a := &audience{peers: *n.peers.Load()}
	for _, p := range ports {
		if p.up && p.Tenant == n.tenant {
			a.here = append(a.here, p)
		}
	}
	known := map[uint32]bool{}
	n.addrs.Each(func(_ netip.Addr, to Target) {
		if to.Kind == ToPort && to.Shard != shard && !known[to.Function] {
			known[to.Function] = true
			a.beyond = append(a.beyond, to)
		}
	})
	slices.SortFunc(a.beyond, func(a, b Target) int { return cmp.Compare(a.Function, b.Function) })
	return a
}

// share gives a packet to a group to all functions of this NIC.
func (a *audience) share(g *Gateway, from uint32, frame []byte, h *header) {
	for _, p := range a.here {
		p.takes(frame[ethLen:], h, Offload{})
	}
	binary.BigEndian.PutUint16(frame[12:], h.etherType())
	for i := range a.beyond {
		if why := g.handOver(from, &a.beyond[i], frame, Offload{}); why != none {
			g.stats.drop(nil, why)
		}
	}
}

// toGroup takes a packet that a port's function sends to a group.
func (g *Gateway) toGroup(p *Endpoint, frame []byte, h *header, f *Forward) Reason {
	if !p.up {
		return DropPortDown
	}
	g.follow(p)
	a := g.audiences.hear(g, p.network)
	a.share(g, p.Function, frame, h)
	if h.total > g.routes.mtu && len(a.peers) > 0 {
		return DropTooBig
	}
	f.start(frame[ethLen:], *h, Offload{}, g.routes.mtu, false)
	f.tunnels, f.tenant, f.peers = &g.Tunnels, p.Tenant, a.peers
	f.NextCopy()
	return none
}

// NextCopy turns to the next peer that a packet of FromFunction is for, and reports whether there
// is one. There never is for a packet to one station.
func (f *Forward) NextCopy() bool {
	for f.Tunnel = nil; len(f.peers) > 0 && f.Tunnel == nil; f.peers = f.peers[1:] {
		f.Tunnel = f.tunnels.To(f.peers[0], f.tenant)
	}
	f.at, f.index = 0, 0
	return f.Tunnel != nil
}

// groupFromTunnel takes a packet to a group that a peer's function sent.
func (g *Gateway) groupFromTunnel(from *Tunnel, frame []byte, h *header, outer uint8) Reason {
	n := g.routes.network(from.Tenant)
	if src, ok := n.find(h.src); !ok || src.Kind != ToPeer || src.Peer != from.Peer {
		return DropWrongSource
	}
	if !h.roce(frame[ethLen:]) {
		return DropMulticast
	}
	ecn, ok := decapsulate(h.ecn(), outer)
	if !ok {
		return DropECN
	}
	h.setECN(frame[ethLen:], ecn)
	g.audiences.hear(g, n).share(g, from.flow(), frame, h)
	return none
}

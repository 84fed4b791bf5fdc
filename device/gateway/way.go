package gateway

import "net/netip"

// Tunnel returns the tunnel to a peer in a tenant, nil when no address of the peer's needs one.
func (g *Gateway) Tunnel(peer uint8, tenant uint32) *Tunnel {
	t := g.tunnels[reach{peer, tenant}]
	if t == nil && g.routes.Reaches(peer, tenant) {
		t = &Tunnel{Peer: peer, Tenant: tenant, Underlay: g.routes.peers[peer].Underlay}
		g.tunnels[reach{peer, tenant}] = t
	}
	return t
}

func (g *Gateway) epoch() epoch { return epoch{g.routes.changes.Load(), g.changes} }

// follow finds the network of a port's tenant, which routes may have made since.
func (g *Gateway) follow(p *Endpoint) {
	if now := g.epoch(); p.followed != now {
		p.followed, p.network = now, g.routes.network(p.Tenant)
	}
}

// way finds where a port's packets to dst go. It remembers the last one's.
func (g *Gateway) way(p *Endpoint, dst netip.Addr) (w *way, ok bool) {
	g.follow(p)
	w = &p.last
	if w.dst == dst && w.epoch == p.followed {
		return w, true
	}
	to, ok := p.network.find(dst)
	if !ok {
		return w, false
	}
	*w = way{epoch: p.followed, dst: dst, to: to}
	switch to.Kind {
	case ToPort:
		w.port = g.here(&to)
	case ToPeer:
		w.tunnel = g.Tunnel(to.Peer, p.Tenant)
	}
	return w, true
}

// here is the endpoint that to leads to, if it is of this shard.
func (g *Gateway) here(to *Target) *Endpoint {
	if to.Shard != g.shard {
		return nil
	}
	return g.byFunc[to.Function]
}

// speaksFor tells whether the gateway answers for a at the port: for others' addresses that have a
// route, and its own.
func (g *Gateway) speaksFor(p *Endpoint, a netip.Addr) bool {
	if a == p.serverID() || a == p.linkLocal() {
		return true
	}
	to, ok := p.network.find(a)
	return ok && !to.at(p)
}

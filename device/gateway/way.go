package gateway

import "net/netip"

func (g *Gateway) epoch() epoch { return epoch{g.routes.changes.Load(), g.changes} }

// follow updates the network of a port's tenant, which the routes may have created since.
func (g *Gateway) follow(p *Endpoint) {
	if now := g.epoch(); p.followed != now {
		p.followed, p.network = now, g.routes.network(p.Tenant)
	}
}

// way finds where a port's packets to dst go. It caches the last result.
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
		w.tunnel = g.Tunnels.To(to.Peer, p.Tenant)
	}
	return w, true
}

// here returns the endpoint that to leads to, or nil if it is not of this shard.
func (g *Gateway) here(to *Target) *Endpoint {
	if to.Shard != g.shard {
		return nil
	}
	return g.byFunc[to.Function]
}

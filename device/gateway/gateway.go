package gateway

import (
	"net/netip"
	"reflect"
	"slices"
)

// MAC is an Ethernet address.
type MAC = [6]byte

// Handover takes frames for ports of other shards, by function. They are copied; false: they are
// not taken.
type Handover interface {
	ToPort(shard uint8, function uint32, frame []byte, off Offload) bool
}

// Gateway carries plain IP between the ports of a shard, those of others, and peers. See the package
// comment.
type Gateway struct {
	Panicked func(v any, frame []byte) // is told of a frame that this code could not take; nil: nobody is
	Handover Handover                  // nil: there are no other shards

	shard   uint8 // that it belongs to
	routes  *Routes
	ports   []*Endpoint
	byFunc  map[uint32]*Endpoint
	tunnels map[reach]*Tunnel
	changes uint64 // of the endpoints
	taken   taken
	replies replies
	out     output
	single  singly
	last    cache
	stats   Stats
}

// New returns a shard's gateway without ports, which finds its way by routes.
func New(shard uint8, routes *Routes) *Gateway {
	g := &Gateway{shard: shard, routes: routes, byFunc: map[uint32]*Endpoint{}, tunnels: map[reach]*Tunnel{}}
	g.out.init()
	return g
}

// AddEndpoint adds a port, which is down. mac is what its guest sees of all other stations.
func (g *Gateway) AddEndpoint(name string, function uint32, mac MAC) *Endpoint {
	p := &Endpoint{Name: name, Function: function, Gateway: mac, network: nowhere}
	g.ports = append(g.ports, p)
	g.byFunc[function] = p
	g.changes++
	return p
}

// RemoveEndpoint takes a port out. Frames for it that wait stay until Output.
func (g *Gateway) RemoveEndpoint(p *Endpoint) {
	p.up = false
	g.ports = slices.DeleteFunc(g.ports, func(q *Endpoint) bool { return q == p })
	if g.byFunc[p.Function] == p {
		delete(g.byFunc, p.Function)
	}
	g.changes++
}

// Configure changes what a port is, and whether it takes part in the network. Whether others find
// it is up to the routes.
func (g *Gateway) Configure(p *Endpoint, c EndpointConfig, up bool) {
	if p.up == up && reflect.DeepEqual(p.EndpointConfig, c) {
		return
	}
	if p.MAC != c.MAC {
		p.mac = c.MAC
	}
	p.EndpointConfig, p.up = c, up
	g.changes++
	g.follow(p)
}

// follow finds the network of a port's tenant, which routes may have made since.
func (g *Gateway) follow(p *Endpoint) {
	if now := g.epoch(); p.followed != now {
		p.followed, p.network = now, g.routes.network(p.Tenant)
	}
}

// Up tells whether a function has an endpoint that takes part.
func (g *Gateway) Up(function uint32) bool {
	p := g.byFunc[function]
	return p != nil && p.up
}

// Endpoint is that of a function of this shard; nil: it has none.
func (g *Gateway) Endpoint(function uint32) *Endpoint { return g.byFunc[function] }

// Endpoints lists them. The slice is the gateway's.
func (g *Gateway) Endpoints() []*Endpoint { return g.ports }

// Stats returns the counters, which move.
func (g *Gateway) Stats() *Stats {
	if g.shard == 0 {
		g.stats.AddressesRefused = g.routes.Refusals()
	}
	return &g.stats
}

// Routes are those it finds its way by.
func (g *Gateway) Routes() *Routes { return g.routes }

// FunctionOf is the one of this NIC that a packet of a tenant comes from or, unless out, is for.
func (g *Gateway) FunctionOf(tenant uint32, packet []byte, out bool) (function uint32, ok bool) {
	h, why := parseIP(packet)
	if why != none {
		return 0, false
	}
	a := h.dst
	if out {
		a = h.src
	}
	to, ok := g.routes.network(tenant).find(a)
	return to.Function, ok && to.Kind == ToPort
}

// epoch tells whether anything was changed that a way depends on.
type epoch struct{ routes, endpoints uint64 }

func (g *Gateway) epoch() epoch { return epoch{g.routes.changes.Load(), g.changes} }

// way is where packets to an address go, as it was found in an epoch.
type way struct {
	epoch
	dst    netip.Addr
	to     Target
	port   *Endpoint // of this shard
	tunnel *Tunnel
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

// handOver gives a frame to the shard that has its port.
func (g *Gateway) handOver(to *Target, frame []byte, off Offload) Reason {
	if to.Shard == g.shard || g.Handover == nil {
		return DropNoPort // it was here a moment ago
	}
	if !g.Handover.ToPort(to.Shard, to.Function, frame, off) {
		return DropShardFull
	}
	g.stats.HandedOver++
	return none
}

// drop counts, at the port too.
func (g *Gateway) drop(p *Endpoint, why Reason) {
	g.stats.Reasons[why]++
	if p != nil {
		p.Drops[why]++
	}
}

package gateway

import (
	"net/netip"
	"reflect"

	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// Gateway carries plain IP between the ports of a shard, those of others, and peers. See the
// package comment.
type Gateway struct {
	Panicked func(v any, frame []byte) // is called with a frame that made this code panic; may be nil
	Handover Handover                  // nil: there are no other shards
	Groups   []Claim                   // functions' packets to groups, the only multicast that is carried
	Tunnels  Tunnels

	shard     uint8 // the shard that it belongs to
	routes    *Routes
	ports     []*Endpoint
	byFunc    map[uint32]*Endpoint
	changes   uint64 // number of changes of the endpoints
	taken     taken
	responder responder
	out       output
	split     Forward // a packet for a port of this NIC, in fragments
	last      cache
	stats     Stats

	receivers receiverCache
	casts     casts
}

// New returns a shard's gateway without ports, which uses routes.
func New(shard uint8, routes *Routes) *Gateway {
	g := &Gateway{shard: shard, routes: routes, byFunc: map[uint32]*Endpoint{}}
	g.Tunnels.init(shard, routes, &g.stats)
	g.responder.stats = &g.stats
	g.out.init(&g.stats, &g.responder)
	g.casts.init()
	return g
}

// UseFunctions sets the callback that reports whether a function of the tenant has a GID.
func (g *Gateway) UseFunctions(knows func(tenant uint32, gid [16]byte) bool) {
	g.responder.knows = knows
}

// AddEndpoint adds a port, which is down. mac is the MAC that its guest sees for all other
// hosts.
func (g *Gateway) AddEndpoint(name string, function uint32, mac MAC) *Endpoint {
	p := &Endpoint{Name: name, Function: function, Gateway: mac, network: nowhere}
	p.at = len(g.ports)
	g.ports = append(g.ports, p)
	g.byFunc[function] = p
	g.changes++
	return p
}

// RemoveEndpoint removes a port. Frames that wait for it stay until Output.
func (g *Gateway) RemoveEndpoint(p *Endpoint) {
	p.up = false
	n := len(g.ports) - 1
	last := g.ports[n] // moves to p's place
	g.ports[p.at], last.at = last, p.at
	g.ports[n] = nil
	g.ports = g.ports[:n]
	if g.byFunc[p.Function] == p {
		delete(g.byFunc, p.Function)
	}
	g.changes++
}

// Configure changes a port's settings, and whether it takes part in the network. Whether others can
// reach it depends on the routes.
func (g *Gateway) Configure(p *Endpoint, c EndpointConfig, up bool) {
	if p.up == up && reflect.DeepEqual(p.EndpointConfig, c) {
		return
	}
	if p.MAC != c.MAC {
		p.mac = c.MAC
	}
	p.neighbours = nil // learned under the old settings
	p.EndpointConfig, p.up = c, up
	g.changes++
	g.follow(p)
}

// Up reports whether a function has an endpoint that takes part.
func (g *Gateway) Up(function uint32) bool {
	p := g.byFunc[function]
	return p != nil && p.up
}

// Endpoint returns the endpoint of a function of this shard, or nil.
func (g *Gateway) Endpoint(function uint32) *Endpoint { return g.byFunc[function] }

// Stats returns the live counters.
func (g *Gateway) Stats() *Stats { return &g.stats }

// Routes returns the routes that the gateway uses.
func (g *Gateway) Routes() *Routes { return g.routes }

// PeerChanged must be called when the routes of a peer's addresses change. It asks the peer for the
// keys that are missing.
func (g *Gateway) PeerChanged(peer cm.PeerID, r security.Requester) {
	asked := map[uint32]bool{}
	for _, p := range g.ports {
		if g.follow(p); !asked[p.Tenant] && p.network.reaches(peer) {
			asked[p.Tenant] = true
			g.Tunnels.ask(peer, p.Tenant, r)
		}
	}
}

// epoch identifies a state of the routes and endpoints: two equal epochs mean that nothing changed
// that a way depends on.
type epoch struct{ routes, endpoints uint64 }

func (g *Gateway) epoch() epoch { return epoch{g.routes.changes.Load(), g.changes} }

// follow updates the network of a port's tenant, which the routes may have created since.
func (g *Gateway) follow(p *Endpoint) {
	if now := g.epoch(); p.followed != now {
		p.followed, p.network = now, g.routes.network(p.Tenant)
	}
}

// way is the route to an address, as found in an epoch.
type way struct {
	epoch
	dst    netip.Addr
	src    netip.Addr // of the last packet that admit let through; invalid: there was none yet
	to     Target
	onLink bool      // dst is in a subnet of the tenant
	port   *Endpoint // if it is of this shard
	tunnel *Tunnel
}

// leads reports whether w is the way of packets from src to dst, found in an epoch.
func (w *way) leads(src, dst netip.Addr, now epoch) bool {
	return w.dst == dst && w.src == src && w.epoch == now
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
	*w = way{epoch: p.followed, dst: dst, to: to, onLink: p.network.onLink(dst)}
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

// mark records how many frames and replies were queued before a frame was processed.
type mark struct{ frames, replies int }

func (g *Gateway) mark() mark { return mark{len(g.out.frames), g.responder.replies.count} }

// survive is deferred while a frame is processed. If the frame makes this code panic, survive
// counts it and removes the output that it began: no guest or peer can crash the NIC with a frame.
func (g *Gateway) survive(p *Endpoint, m mark, frame []byte) {
	v := recover()
	if v == nil {
		return
	}
	g.stats.drop(p, DropPanic)
	g.responder.replies.count = m.replies
	g.out.frames = g.out.frames[:m.frames]
	for i := range g.out.recent { // some may be of the removed frames
		g.out.recent[i] = -1
	}
	if g.Panicked != nil {
		g.Panicked(v, frame)
	}
}

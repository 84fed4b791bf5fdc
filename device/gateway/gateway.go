package gateway

import (
	"reflect"

	"github.com/falcon-vnic/vnic/device/security"
)

// Handover takes frames for ports of other shards, by function, and charges them to from: the
// function that sent it, or a number for the peer. They are copied; false: they are not taken.
type Handover interface {
	ToPort(shard uint8, from, function uint32, frame []byte, off Offload) bool
	// ToGroup takes a packet to a group for all functions of a shard in a tenant.
	ToGroup(shard uint8, from, tenant uint32, frame []byte) bool
}

// Gateway carries plain IP between the ports of a shard, those of others, and peers. See the
// package comment.
type Gateway struct {
	Panicked func(v any, frame []byte) // is told of a frame that this code could not take; nil: nobody is
	Handover Handover                  // nil: there are no other shards
	Tunnels  Tunnels

	shard   uint8 // that it belongs to
	routes  *Routes
	ports   []*Endpoint
	byFunc  map[uint32]*Endpoint
	changes uint64 // of the endpoints
	taken   taken
	station station
	out     output
	split   Forward // a packet for a port of this NIC, in fragments
	last    cache
	stats   Stats

	audiences audiences
	casts     casts
}

// New returns a shard's gateway without ports, which finds its way by routes.
func New(shard uint8, routes *Routes) *Gateway {
	g := &Gateway{shard: shard, routes: routes, byFunc: map[uint32]*Endpoint{}}
	g.Tunnels.init(shard, routes, &g.stats)
	g.station.stats = &g.stats
	g.out.init(&g.stats, &g.station)
	g.casts.init()
	return g
}

// UseFunctions says how to find out whether a GID in a tenant is a function's.
func (g *Gateway) UseFunctions(knows func(tenant uint32, gid [16]byte) bool) { g.station.knows = knows }

// AddEndpoint adds a port, which is down. mac is what its guest sees of all other stations.
func (g *Gateway) AddEndpoint(name string, function uint32, mac MAC) *Endpoint {
	p := &Endpoint{Name: name, Function: function, Gateway: mac, network: nowhere}
	p.at = len(g.ports)
	g.ports = append(g.ports, p)
	g.byFunc[function] = p
	g.changes++
	return p
}

// RemoveEndpoint takes a port out. Frames for it that wait stay until Output.
func (g *Gateway) RemoveEndpoint(p *Endpoint) {
	p.up = false
	n := len(g.ports) - 1
	last := g.ports[n] // takes its place
	g.ports[p.at], last.at = last, p.at
	g.ports[n] = nil
	g.ports = g.ports[:n]
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
	p.stations = nil // of what it was
	p.EndpointConfig, p.up = c, up
	g.changes++
	g.follow(p)
}

// Up tells whether a function has an endpoint that takes part.
func (g *Gateway) Up(function uint32) bool {
	p := g.byFunc[function]
	return p != nil && p.up
}

// Endpoint is that of a function of this shard; nil: it has none.
func (g *Gateway) Endpoint(function uint32) *Endpoint { return g.byFunc[function] }

// Stats returns the counters, which move.
func (g *Gateway) Stats() *Stats { return &g.stats }

// Routes are those it finds its way by.
func (g *Gateway) Routes() *Routes { return g.routes }

// PeerChanged is told that the routes have other addresses of a peer than before: it may have to be
// asked for keys.
func (g *Gateway) PeerChanged(peer uint8, r security.Requester) {
	asked := map[uint32]bool{}
	for _, p := range g.ports {
		if g.follow(p); !asked[p.Tenant] && p.network.reaches(peer) {
			asked[p.Tenant] = true
			g.Tunnels.ask(peer, p.Tenant, r)
		}
	}
}

// cache remembers the last packet's way from a tunnel, so that the next one of a flow needs no
// look-up.
type cache struct {
	epoch
	from  *Tunnel
	v6    bool
	addrs [32]byte
	to    Target
	port  *Endpoint // nil: of another shard
}

// taken are frames of ports on their way out, in order. Their memory is the gateway's until it is
// done with them.
type taken struct {
	in   []PortInput
	next int     // those before are done
	cut  Forward // of the frame before next, while cutting
	cuts bool
}

package gateway

import (
	"reflect"

	"github.com/falcon-vnic/vnic/device/security"
)

// Handover passes frames to ports of other shards, by function, and charges them to from: the
// sending function, or a number for the peer. Frames are copied. A method returns false if the
// frame is not taken.
type Handover interface {
	ToPort(shard uint8, from, function uint32, frame []byte, off Offload) bool
	// ToGroup passes a multicast packet to all functions of a tenant in a shard.
	ToGroup(shard uint8, from, tenant uint32, frame []byte) bool
}

// Gateway carries plain IP between the ports of a shard, those of others, and peers. See the
// package comment.
type Gateway struct {
	Panicked func(v any, frame []byte) // is called with a frame that made this code panic; may be nil
	Handover Handover                  // nil: there are no other shards
	Tunnels  Tunnels

	shard   uint8 // the shard that it belongs to
	routes  *Routes
	ports   []*Endpoint
	byFunc  map[uint32]*Endpoint
	changes uint64 // number of changes of the endpoints
	taken   taken
	station station
	out     output
	split   Forward // a packet for a port of this NIC, in fragments
	last    cache
	stats   Stats

	audiences audiences
	casts     casts
}

// New returns a shard's gateway without ports, which uses routes.
func New(shard uint8, routes *Routes) *Gateway {
	g := &Gateway{shard: shard, routes: routes, byFunc: map[uint32]*Endpoint{}}
	g.Tunnels.init(shard, routes, &g.stats)
	g.station.stats = &g.stats
	g.out.init(&g.stats, &g.station)
	g.casts.init()
	return g
}

// UseFunctions sets the callback that reports whether a function of the tenant has a GID.
func (g *Gateway) UseFunctions(knows func(tenant uint32, gid [16]byte) bool) { g.station.knows = knows }

// AddEndpoint adds a port, which is down. mac is the MAC that its guest sees for all other
// stations.
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
	p.stations = nil // learned under the old settings
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
func (g *Gateway) PeerChanged(peer uint8, r security.Requester) {
	asked := map[uint32]bool{}
	for _, p := range g.ports {
		if g.follow(p); !asked[p.Tenant] && p.network.reaches(peer) {
			asked[p.Tenant] = true
			g.Tunnels.ask(peer, p.Tenant, r)
		}
	}
}

// cache remembers the way of the last packet from a tunnel, so that the next packet of its flow
// needs no look-up.
type cache struct {
	epoch
	from  *Tunnel
	v6    bool
	addrs [32]byte
	to    Target
	port  *Endpoint // nil: of another shard
}

// taken holds frames of ports on their way out, in order. The gateway uses their memory until it
// has processed them.
type taken struct {
	in   []PortInput
	next int     // index of the next frame
	cut  Forward // packets of the frame before next, while cuts is true
	cuts bool
}

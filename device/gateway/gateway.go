package gateway

import (
	"reflect"
	"slices"
)

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

// drop counts, at the port too.
func (g *Gateway) drop(p *Endpoint, why Reason) {
	g.stats.Reasons[why]++
	if p != nil {
		p.Drops[why]++
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

// PortInput is a frame that came from a function's port.
type PortInput struct {
	From    *Endpoint
	Frame   []byte
	Offload Offload
}

// taken are frames of ports on their way out, in order. Their memory is the gateway's until it is
// done with them.
type taken struct {
	in   []PortInput
	next int     // those before are done
	cut  Forward // of the frame before next, while cutting
	cuts bool
}

// singly is what a frame is made of that its port's guest does not take as it is.
type singly struct {
	frame   PortFrame
	forward Forward
}

// reply returns the memory of a frame of n bytes to the port's guest, with its Ethernet header, nil
// when the ring is full.
func (g *Gateway) reply(p *Endpoint, etherType uint16, n int) []byte {
	r := &g.replies
	if r.count == maxReplies {
		g.drop(p, DropReplyFull)
		return nil
	}
	i := (r.head + r.count) % maxReplies
	r.lens[i], r.ports[i] = n, p
	r.count++
	f := r.frames[i][:n]
	p.ethernet(f, etherType)
	return f
}

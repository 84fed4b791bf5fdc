package cm

import (
	"fmt"
	"slices"
)

// directory says where addresses are: those of our functions, and those that peers offer.
type directory struct {
	peers *peers
	out   *outbox

	instance  uint64 // of this process, for peers
	local     map[endpointKey]seat
	endpoints []Endpoint // the same, in order
	routes    map[endpointKey]route

	known *Known // nil: it has changed
}

// Known are the addresses of functions, ours and those that peers told of, at one moment. Any
// goroutine may ask.
type Known struct{ has map[endpointKey]struct{} }

// Has reports whether a GID in a tenant is a function's.
func (k *Known) Has(tenant uint32, gid [16]byte) bool {
	_, ok := k.has[endpointKey{tenant, gid}]
	return ok
}

// route says where an address is.
type route struct {
	peer *peer
	seat
}

func newDirectory(p *peers, out *outbox, instance uint64) *directory {
	return &directory{peers: p, out: out, instance: instance, local: make(map[endpointKey]seat), routes: make(map[endpointKey]route)}
}

// set replaces what we offer, and tells the peers that are up.
func (d *directory) set(local []Endpoint) error {
	byKey, err := d.check(local)
	if err != nil {
		return err
	}
	d.local, d.endpoints, d.known = byKey, slices.Clone(local), nil
	d.peers.self.offers = byKey
	clear(d.peers.self.tenants)
	for _, e := range local {
		d.peers.self.tenants[e.Tenant] = true
	}
	for k := range byKey { // our own word counts more than a peer's
		if r, ok := d.routes[k]; ok {
			delete(r.peer.offers, k)
			delete(d.routes, k)
			d.out.stats.RouteConflicts++
		}
	}
	for _, p := range d.peers.sorted() {
		if p.up {
			d.tell(p)
		}
	}
	return nil
}

func (d *directory) check(local []Endpoint) (map[endpointKey]seat, error) {
	byKey := make(map[endpointKey]seat, len(local))
	for _, e := range local {
		k := endpointKey{e.Tenant, e.GID}
		if e.Function > max24 || HostID(e.Function>>16) != d.peers.self.Host {
			return nil, fmt.Errorf("cm: %v: function %#06x is not of host %d: %w", k, e.Function, d.peers.self.Host, ErrInvalid)
		}
		if other, twice := byKey[k]; twice {
			return nil, fmt.Errorf("cm: %v: functions %#06x and %#06x: %w", k, other.function, e.Function, ErrInvalid)
		}
		byKey[k] = e.seat()
	}
	for _, p := range d.peers.byHost {
		n := 0
		for _, e := range local {
			if p.tenants[e.Tenant] {
				n++
			}
		}
		if n > MaxEndpoints {
			return nil, fmt.Errorf("cm: %d addresses of functions in the tenants shared with host %d, at most %d: %w", n, p.Host, MaxEndpoints, ErrLimit)
		}
	}
	return byKey, nil
}

// tell greets a peer with what we offer it.
func (d *directory) tell(p *peer) {
	h := Hello{Host: d.peers.self.Host, Instance: d.instance}
	for _, e := range d.endpoints {
		if p.tenants[e.Tenant] {
			h.Endpoints = append(h.Endpoints, e)
		}
	}
	d.out.send(p, h.Append(nil))
}

// learn replaces the routes to a peer's functions. An address someone else has
// stays with him, unless he is a peer whose link is down: his function may have
// moved.
func (d *directory) learn(p *peer, offers []Endpoint) {
	for k := range p.offers {
		delete(d.routes, k)
	}
	clear(p.offers)
	d.known = nil
	for _, e := range offers {
		k := endpointKey{e.Tenant, e.GID}
		switch r, taken := d.routes[k]; {
		case !p.tenants[e.Tenant]:
			d.out.stats.RouteTenantRefused++
		case HostID(e.Function>>16) != p.Host:
			d.out.stats.RouteFunctionRefused++
		case d.isLocal(k), taken && (r.peer == p || r.peer.up):
			d.out.stats.RouteConflicts++
		default:
			if taken {
				delete(r.peer.offers, k)
			}
			p.offers[k] = e.seat()
			d.routes[k] = route{p, e.seat()}
		}
	}
}

func (d *directory) isLocal(k endpointKey) bool {
	_, ok := d.local[k]
	return ok
}

// find says where an address is.
func (d *directory) find(k endpointKey) (r route, ok bool) {
	if at, local := d.local[k]; local {
		return route{d.peers.self, at}, true
	}
	r, ok = d.routes[k]
	return r, ok
}

// offered says which peer has an address, if one has that can be reached.
func (d *directory) offered(k endpointKey) (by HostID, ok bool) {
	r, ok := d.routes[k]
	if !ok || !r.peer.up {
		return 0, false
	}
	return r.peer.Host, true
}

// snapshot returns the addresses that there are.
func (d *directory) snapshot() *Known {
	if d.known == nil {
		d.known = &Known{make(map[endpointKey]struct{}, len(d.local)+len(d.routes))}
		for k := range d.local {
			d.known.has[k] = struct{}{}
		}
		for k := range d.routes {
			d.known.has[k] = struct{}{}
		}
	}
	return d.known
}

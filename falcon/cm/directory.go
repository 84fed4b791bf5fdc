package cm

import (
	"fmt"
	"slices"
)

// directory knows where addresses are: those of our functions, and those that peers offer.
type directory struct {
	peers *peers
	out   *outbox

	instance  uint64 // identifies this process to peers
	local     map[Address]seat
	endpoints []Endpoint // the same addresses, in order
	claims    claims[seat]

	known *Known // nil: out of date
}

// seat is the function that has an address, and the function's shard.
type seat struct {
	function uint32
	shard    uint8
}

func (e *Endpoint) seat() seat { return seat{e.Function, e.Shard} }

// Known holds the addresses of functions, ours and those that peers offer, at one moment. Any
// goroutine may use it.
type Known struct{ has map[Address]struct{} }

// Has reports whether a GID in a tenant belongs to a function.
func (k *Known) Has(tenant uint32, gid [16]byte) bool {
	_, ok := k.has[Address{tenant, gid}]
	return ok
}

func newDirectory(p *peers, out *outbox, instance uint64) *directory {
	return &directory{peers: p, out: out, instance: instance, local: make(map[Address]seat), claims: newClaims[seat](p, out)}
}

// set replaces the addresses that we offer, and informs the peers that are up.
func (d *directory) set(local []Endpoint) error {
	byAddress, err := d.check(local)
	if err != nil {
		return err
	}
	d.local, d.endpoints, d.known = byAddress, slices.Clone(local), nil
	clear(d.peers.self.tenants)
	for _, e := range local {
		d.peers.self.tenants[e.Tenant] = true
	}
	for _, p := range d.peers.sorted() {
		if p.up {
			d.tell(p)
		}
	}
	return nil
}

func (d *directory) check(local []Endpoint) (map[Address]seat, error) {
	byAddress := make(map[Address]seat, len(local))
	for _, e := range local {
		a := Address{e.Tenant, e.GID}
		if e.Function > max24 || HostID(e.Function>>16) != d.peers.self.Host {
			return nil, fmt.Errorf("cm: %v: function %#06x is not of host %d: %w", a, e.Function, d.peers.self.Host, ErrInvalid)
		}
		if other, twice := byAddress[a]; twice {
			return nil, fmt.Errorf("cm: %v: functions %#06x and %#06x: %w", a, other.function, e.Function, ErrInvalid)
		}
		byAddress[a] = e.seat()
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
	return byAddress, nil
}

// tell sends a peer a Hello with the addresses that we offer it.
func (d *directory) tell(p *peer) {
	h := Hello{Host: d.peers.self.Host, Instance: d.instance + 2*p.forgotten} // odd: never 0
	for _, e := range d.endpoints {
		if p.tenants[e.Tenant] {
			h.Endpoints = append(h.Endpoints, e)
		}
	}
	d.out.send(p, h.Append(nil))
}

// learn replaces the addresses that a peer offers.
func (d *directory) learn(p *peer, offers []Endpoint) {
	list := make([]told[seat], len(offers))
	for i := range offers {
		e := &offers[i]
		list[i] = told[seat]{Address{e.Tenant, e.GID}, e.Function, e.seat()}
	}
	refused, _ := d.claims.learn(p, list)
	p.refuse(d.out, &p.refused.functions, refused)
	d.known = nil
}

// find returns where an address is. The peer is this NIC for a function of ours.
func (d *directory) find(a Address) (p *peer, at seat, ok bool) {
	if at, local := d.local[a]; local {
		return d.peers.self, at, true
	}
	p, at = d.claims.find(a)
	return p, at, p != nil
}

// at returns the function of a peer that has an address.
func (d *directory) at(p *peer, a Address) (at seat, ok bool) {
	by, at, ok := d.find(a)
	return at, ok && by == p
}

// offered returns the peer that has an address, if that peer is up.
func (d *directory) offered(a Address) (by HostID, ok bool) {
	p, _ := d.claims.find(a)
	if p == nil || !p.up {
		return 0, false
	}
	return p.Host, true
}

// snapshot returns the present addresses.
func (d *directory) snapshot() *Known {
	if d.known == nil {
		d.known = &Known{make(map[Address]struct{}, len(d.local)+len(d.claims.all))}
		for a := range d.local {
			d.known.has[a] = struct{}{}
		}
		for a := range d.claims.all {
			if p, _ := d.claims.find(a); p != nil {
				d.known.has[a] = struct{}{}
			}
		}
	}
	return d.known
}

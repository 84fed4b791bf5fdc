package cm

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Address is a function's address in a tenant. GIDs of different tenants may be equal.
type Address struct {
	Tenant uint32
	GID    [16]byte
}

func (a Address) String() string {
	return fmt.Sprintf("GID %s, tenant %d", gidString(a.GID), a.Tenant)
}

// IP returns the address in its usual written form.
func (a Address) IP() netip.Addr { return netip.AddrFrom16(a.GID).Unmap() }

// gidString formats a GID as pairs of bytes, for error texts.
func gidString(g [16]byte) string {
	var b bytes.Buffer
	for i := 0; i < 16; i += 2 {
		if i > 0 {
			b.WriteByte(':')
		}
		fmt.Fprintf(&b, "%02x%02x", g[i], g[i+1])
	}
	return b.String()
}

// Every address that a peer announces passes the same check, whether it belongs to a function
// (Hello), is a GID that a driver added to a function (Hello again), or belongs to a port (PORTS):
//
//	tenant    it is shared with the peer
//	function  it is of the peer's host
//	address   the configuration, or whatever grants addresses, lets the peer have it (Peer.MayHave)
//
// An announcement that passes is a claim. Of all peers that claim an address, at most one has it:
// none if a function of this NIC has it, else the first claimant whose link is up, for as long as
// it is up. The claims of the others wait, so that an address that is given up passes to the next
// one at once.

// claims holds the addresses of functions, or of ports, and the peers that claim them. V is the
// information about one address.
type claims[V any] struct {
	peers *peers
	out   *outbox
	all   map[Address][]claim[V] // by address; the first claimant has it
	of    map[*peer][]Address    // addresses claimed by each peer, in its order
}

type claim[V any] struct {
	peer *peer
	what V
}

// told is one address that a peer announces.
type told[V any] struct {
	Address
	function uint32
	what     V
}

func newClaims[V any](p *peers, out *outbox) claims[V] {
	return claims[V]{peers: p, out: out, all: make(map[Address][]claim[V]), of: make(map[*peer][]Address)}
}

// learn replaces what a peer claims. It returns what was refused, and the other peers whose
// addresses changed as a result.
func (c *claims[V]) learn(p *peer, list []told[V]) (refused Refused, others []*peer) {
	now := make(map[Address]*told[V], len(list))
	order := make([]Address, 0, len(list))
	for i := range list {
		t := &list[i]
		why, count := c.refuses(p, t.Address, t.function)
		if _, twice := now[t.Address]; why == "" && twice {
			why, count = "it tells of it twice", &c.out.stats.RouteConflicts
		}
		if why != "" {
			*count++
			refused.add(t.Address, why)
			continue
		}
		now[t.Address] = t
		order = append(order, t.Address)
	}
	for _, a := range c.of[p] {
		if _, still := now[a]; !still {
			others = appendNew(others, c.drop(p, a))
		}
	}
	if c.of[p] = order; len(order) == 0 {
		delete(c.of, p)
	}
	for _, a := range order {
		others = appendNew(others, c.put(p, a, now[a].what))
		if has := c.owner(a); has != p {
			c.out.stats.RouteConflicts++
			refused.add(a, fmt.Sprintf("host %d has it", has.Host))
		}
	}
	return refused, others
}

func appendNew(list []*peer, p *peer) []*peer {
	if p == nil || slices.Contains(list, p) {
		return list
	}
	return append(list, p)
}

// refuses returns why an announcement is refused and the counter for it; why is "" if it is not.
func (c *claims[V]) refuses(p *peer, a Address, function uint32) (why string, count *uint64) {
	if !p.tenants[a.Tenant] {
		return "the tenant is not shared with it (peers[].tenants)", &c.out.stats.RouteTenantRefused
	}
	if h := HostID(function >> 16); h != p.Host {
		return fmt.Sprintf("the function is one of host %d", h), &c.out.stats.RouteFunctionRefused
	}
	if p.MayHave != nil {
		return p.MayHave(a), &c.out.stats.RouteAddressRefused
	}
	return "", nil
}

// put adds a claim. It returns the peer that lost the address as a result.
func (c *claims[V]) put(p *peer, a Address, what V) (lost *peer) {
	list := c.all[a]
	if i := slices.IndexFunc(list, func(o claim[V]) bool { return o.peer == p }); i >= 0 {
		list[i].what = what
	} else {
		c.all[a] = append(list, claim[V]{p, what})
	}
	return c.settle(a)
}

// drop removes a claim. It returns the peer that has the address now instead.
func (c *claims[V]) drop(p *peer, a Address) (has *peer) {
	list := c.all[a]
	had := list[0].peer == p
	list = slices.DeleteFunc(list, func(o claim[V]) bool { return o.peer == p })
	if len(list) == 0 {
		delete(c.all, a)
		return nil
	}
	c.all[a] = list
	if !had {
		return nil
	}
	c.settle(a)
	return list[0].peer
}

// settle gives an address to the first claimant whose link is up. It returns the peer that lost it.
func (c *claims[V]) settle(a Address) (lost *peer) {
	list := c.all[a]
	first := list[0].peer
	if first.up {
		return nil
	}
	i := slices.IndexFunc(list, func(o claim[V]) bool { return o.peer.up })
	if i < 0 {
		return nil
	}
	up := list[i]
	copy(list[1:], list[:i])
	list[0] = up
	return first
}

// down passes the addresses of a peer whose link went down to others that claim them. It returns
// those peers.
func (c *claims[V]) down(p *peer) (others []*peer) {
	for _, a := range c.of[p] {
		if c.settle(a) == p {
			others = appendNew(others, c.all[a][0].peer)
		}
	}
	return others
}

// owner returns who has an address that is claimed: this NIC or a peer.
func (c *claims[V]) owner(a Address) *peer {
	if c.peers.ours[a] {
		return c.peers.self
	}
	return c.all[a][0].peer
}

// find returns the peer that has an address, and the information about it.
func (c *claims[V]) find(a Address) (*peer, V) {
	if list := c.all[a]; len(list) > 0 && !c.peers.ours[a] {
		return list[0].peer, list[0].what
	}
	var none V
	return nil, none
}

// has calls f for each address that a peer has.
func (c *claims[V]) has(p *peer, f func(a Address, what V)) {
	for _, a := range c.of[p] {
		if by, what := c.find(a); by == p {
			f(a, what)
		}
	}
}

// Refused lists addresses that a peer announces but does not get, of functions or of ports.
type Refused struct {
	Count int
	first [3]refusal
}

type refusal struct {
	Address
	why string
}

func (r *Refused) add(a Address, why string) {
	if r.Count < len(r.first) {
		r.first[r.Count] = refusal{a, why}
	}
	r.Count++
}

// String lists the first of them with the reasons.
func (r Refused) String() string {
	var b strings.Builder
	for i := range r.first[:min(r.Count, len(r.first))] {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s of tenant %d: %s", r.first[i].IP(), r.first[i].Tenant, r.first[i].why)
	}
	if more := r.Count - len(r.first); more > 0 {
		fmt.Fprintf(&b, "; and %d more", more)
	}
	return b.String()
}

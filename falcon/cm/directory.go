package cm

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	lookup "github.com/falcon-vnic/vnic/internal/table"
)

// directory knows where addresses are: those of our functions, and those that peers offer.
type directory struct {
	peers *peers
	out   *outbox

	instance  uint64 // identifies this process to peers
	local     map[Address]seat
	endpoints []Endpoint // the same addresses, in order
	claims    claims[seat]

	known *Known
}

// seat is the function that has an address, and the function's shard.
type seat struct {
	function uint32
	shard    uint8
}

func (e *Endpoint) seat() seat { return seat{e.Function, e.Shard} }

// Known holds the present addresses of functions, ours and those that peers offer. Any goroutine may
// use it.
type Known struct {
	has *lookup.Table[Address, struct{}]
}

// Has reports whether a GID in a tenant belongs to a function.
func (k *Known) Has(tenant uint32, gid [16]byte) bool {
	_, ok := k.has.Find(Address{tenant, gid})
	return ok
}

func newDirectory(p *peers, out *outbox, instance uint64) *directory {
	return &directory{peers: p, out: out, instance: instance, known: &Known{lookup.New[Address, struct{}]()}, local: make(map[Address]seat), claims: newClaims[seat](p, out)}
}

// set replaces the addresses that we offer, and informs the peers that are up.
func (d *directory) set(local []Endpoint) error {
	byAddress, err := d.seatsOf(local)
	if err != nil {
		return err
	}
	d.local, d.endpoints = byAddress, slices.Clone(local) // known follows with peers.ours (Manager.own)
	clear(d.peers.self.tenants)
	for _, e := range local {
		d.peers.self.tenants[e.Tenant] = true
	}
	for _, p := range d.peers.all {
		if p.up {
			d.tell(p)
		}
	}
	return nil
}

// seatsOf checks endpoints of ours, and returns them by address.
func (d *directory) seatsOf(local []Endpoint) (map[Address]seat, error) {
	byAddress := make(map[Address]seat, len(local))
	for _, e := range local {
		a := Address{e.Tenant, e.GID}
		if e.Function > max24 || HostID(e.Function>>16) != d.peers.self.host {
			return nil, fmt.Errorf("cm: %v: function %#06x is not of host %d: %w", a, e.Function, d.peers.self.host, ErrInvalid)
		}
		if other, twice := byAddress[a]; twice {
			return nil, fmt.Errorf("cm: %v: functions %#06x and %#06x: %w", a, other.function, e.Function, ErrInvalid)
		}
		byAddress[a] = e.seat()
	}
	for _, p := range d.peers.all {
		if err := p.tellable(local); err != nil {
			return nil, err
		}
	}
	return byAddress, nil
}

// tellable reports whether a peer can be told of these functions.
func (p *peer) tellable(local []Endpoint) error {
	n := 0
	for _, e := range local {
		if p.tenants[e.Tenant] {
			n++
		}
	}
	if n > MaxEndpoints {
		return fmt.Errorf("cm: %d addresses of functions in the tenants shared with NIC %s, at most %d: %w", n, p.Name, MaxEndpoints, ErrLimit)
	}
	return nil
}

// tell sends a peer a Hello with the addresses that we offer it.
func (d *directory) tell(p *peer) {
	h := Hello{Host: d.peers.self.host, Instance: d.instance + 2*p.forgotten} // odd: never 0
	for _, e := range d.endpoints {
		if p.tenants[e.Tenant] {
			h.Endpoints = append(h.Endpoints, e)
		}
	}
	d.out.send(p, Encode(&h))
}

// learn replaces the addresses that a peer offers.
func (d *directory) learn(p *peer, offers []Endpoint) {
	p.said.functions = offers
	list := make([]told[seat], len(offers))
	for i := range offers {
		e := &offers[i]
		list[i] = told[seat]{Address{e.Tenant, e.GID}, e.Function, e.seat()}
	}
	had := d.claims.of[p]
	refused, _ := d.claims.learn(p, list)
	for _, a := range had {
		d.note(a)
	}
	for _, a := range d.claims.of[p] {
		d.note(a)
	}
	p.refuse(d.out, &p.refused.functions, refused)
}

// note makes known say whether a function has an address.
func (d *directory) note(a Address) {
	_, has := d.local[a]
	if p, _ := d.claims.find(a); has || p != nil {
		d.known.has.Set(a, struct{}{})
	} else {
		d.known.has.Delete(a)
	}
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
func (d *directory) offered(a Address) (by PeerID, ok bool) {
	p, _ := d.claims.find(a)
	if p == nil || !p.up {
		return 0, false
	}
	return p.ID, true
}

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
			refused.add(a, fmt.Sprintf("%s has it", has))
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
	why, reason := p.refuses(a)
	if reason == ReasonTenant {
		return why, &c.out.stats.RouteTenantRefused
	}
	if h := HostID(function >> 16); h != p.host {
		return fmt.Sprintf("the function is one of host %d", h), &c.out.stats.RouteFunctionRefused
	}
	return why, &c.out.stats.RouteAddressRefused
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

// portBook holds the addresses of ports: ours, and those of peers.
type portBook struct {
	peers  *peers
	out    *outbox
	ports  []PortAddress // ours
	claims claims[PortAddress]
}

func newPortBook(p *peers, out *outbox) *portBook {
	return &portBook{peers: p, out: out, claims: newClaims[PortAddress](p, out)}
}

// set replaces our ports, and informs the peers that are up.
func (b *portBook) set(local []PortAddress) error {
	if err := b.checkPorts(local); err != nil {
		return err
	}
	b.ports = slices.Clone(local)
	for _, p := range b.peers.all {
		if p.up {
			b.tell(p)
		}
	}
	return nil
}

// checkPorts reports whether set would succeed.
func (b *portBook) checkPorts(local []PortAddress) error {
	for _, e := range local {
		if e.Function > max24 || HostID(e.Function>>16) != b.peers.self.host {
			return fmt.Errorf("cm: port of function %#06x, which is not of host %d: %w", e.Function, b.peers.self.host, ErrInvalid)
		}
	}
	for _, p := range b.peers.all {
		if err := p.portsTellable(local); err != nil {
			return err
		}
	}
	return nil
}

// portsTellable reports whether a peer can be told of these ports.
func (p *peer) portsTellable(local []PortAddress) error {
	if n := len(p.shared(local)); n > MaxPorts {
		return fmt.Errorf("cm: %d addresses of ports in the tenants shared with NIC %s, at most %d: %w", n, p.Name, MaxPorts, ErrLimit)
	}
	return nil
}

func (p *peer) shared(all []PortAddress) (list []PortAddress) {
	for _, e := range all {
		if p.tenants[e.Tenant] {
			list = append(list, e)
		}
	}
	return list
}

// tell announces our ports to a peer. It sends nothing if there are none and none were announced
// before.
func (b *portBook) tell(p *peer) {
	msg := PORTS{p.shared(b.ports)}
	if len(msg.Ports) == 0 && !p.told {
		return
	}
	p.told = len(msg.Ports) > 0
	p.wasTold = p.wasTold || p.told
	b.out.send(p, Encode(&msg))
}

// learn replaces a peer's ports.
func (b *portBook) learn(p *peer, said []PortAddress) {
	p.said.ports = said
	list := make([]told[PortAddress], len(said))
	for i := range said {
		list[i] = told[PortAddress]{Address{said[i].Tenant, said[i].Addr}, said[i].Function, said[i]}
	}
	refused, others := b.claims.learn(p, list)
	p.refuse(b.out, &p.refused.ports, refused)
	b.changed(append(others, p))
}

// changed reports that the ports of these peers have changed.
func (b *portBook) changed(list []*peer) {
	for _, p := range list {
		b.out.emit(Output{Kind: OutPorts, Peer: p.ID})
	}
}

// of lists the ports of a peer.
func (b *portBook) of(p *peer) (list []PortAddress) {
	b.claims.has(p, func(_ Address, what PortAddress) { list = append(list, what) })
	return list
}

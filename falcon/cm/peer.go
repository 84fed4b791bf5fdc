package cm

import (
	"cmp"
	"slices"
)

// peer is the state of another NIC.
type peer struct {
	Peer
	host      HostID // of its functions: Peer.Host, or what Hello says
	tenants   map[uint32]bool
	up        bool           // the link is up
	ready     bool           // the link is up and Hello arrived on it
	speaks    uint8          // version of its messages, if it is another; 0: ours, or unknown
	instance  uint64         // of the peer's process, in its last Hello; 0: none came yet
	forgotten uint64         // Manager.forgets when what was agreed with it was last forgotten
	conns     int            // connections in any state
	mtu       int            // of new connections with it, at most Config.MTU
	sources   Shares[uint32] // connections that its functions have requested

	said struct { // its last announcement, which other rules may judge otherwise (Manager.ChangePeer)
		functions []Endpoint
		ports     []PortAddress
	}
	told    bool // ports of ours were announced to it, and not withdrawn on this link
	wasTold bool // ports of ours were ever announced to it
	refused struct{ functions, ports Refused }

	keys   map[Use]SA     // the newest SAs that the peer gave us to seal with
	rekeys map[Use]SA     // SAs that we gave it and it has not confirmed
	wants  map[Use]uint32 // SPIs for which we requested a replacement
	asked  bool           // it is among rekeying.soon
	retold Time           // earliest time to send it a key again because of a wrong SPI
}

func newPeer(p Peer, c *Config) *peer {
	n := &peer{
		mtu: c.MTU, sources: Shares[uint32]{Size: c.MaxPerPeer, Multiple: 3},
		keys: make(map[Use]SA), rekeys: make(map[Use]SA), wants: make(map[Use]uint32),
	}
	n.configure(p)
	return n
}

// configure takes over what the configuration says of a peer.
func (p *peer) configure(c Peer) {
	p.Peer, p.tenants = c, make(map[uint32]bool, len(c.Tenants))
	for _, t := range c.Tenants {
		p.tenants[t] = true
	}
	if c.Host != 0 {
		p.host = c.Host
	}
}

// String names the peer in messages.
func (p *peer) String() string {
	if p.ID == Self {
		return "this NIC"
	}
	return "NIC " + p.Name
}

// refuses returns why a peer may not have an address as the configuration is now; "": it may.
func (p *peer) refuses(a Address) (why string, reason Reason) {
	switch {
	case !p.tenants[a.Tenant]:
		return "the tenant is not shared with it (peers[].tenants)", ReasonTenant
	case p.MayHave != nil:
		return p.MayHave(a), ReasonGID
	}
	return "", ReasonNone
}

// refuse records which of a peer's announced addresses are refused. It emits OutRefused if they
// differ from the last time.
func (p *peer) refuse(out *outbox, last *Refused, now Refused) {
	if now.Count > 0 && now != *last {
		out.emit(Output{Kind: OutRefused, Peer: p.ID, Refused: now})
	}
	*last = now
}

func (p *peer) compare(o *peer) int { return cmp.Compare(p.ID, o.ID) }

// peers holds the NICs that this one may talk to.
type peers struct {
	byID map[PeerID]*peer
	all  []*peer          // in the order of their IDs, so that a run can be replayed
	self *peer            // this NIC, for connections between its own functions
	ours map[Address]bool // addresses that functions of this NIC have, in service or not
}

func newPeers(c *Config) *peers {
	s := &peers{byID: make(map[PeerID]*peer), ours: make(map[Address]bool), self: newPeer(Peer{ID: Self, Host: c.Host}, c)}
	s.self.up, s.self.ready = true, true
	return s
}

// of returns a peer, or this NIC.
func (s *peers) of(id PeerID) *peer {
	if id == Self {
		return s.self
	}
	return s.byID[id]
}

func (s *peers) add(p *peer) {
	s.byID[p.ID] = p
	at, _ := slices.BinarySearchFunc(s.all, p, (*peer).compare)
	s.all = slices.Insert(s.all, at, p)
}

func (s *peers) remove(p *peer) {
	delete(s.byID, p.ID)
	at, _ := slices.BinarySearchFunc(s.all, p, (*peer).compare)
	s.all = slices.Delete(s.all, at, at+1)
}

// Shares divides a table among its holders. Each holder may have a multiple of the number of free
// entries. So a single holder can have most of the table, several have equal parts, and a newcomer
// always finds room.
//
//	multiple 1: one holder has 1/2 at most, two 1/3 each, n 1/(n+1) each, and as much is free
//	multiple 3: one holder has 3/4 at most, two 3/7 each, n 3/(3n+1) each, and 1/(3n+1) is free
type Shares[K comparable] struct {
	Size     int // entries of the table
	Multiple int

	used int
	by   map[K]int
}

// Room reports whether a holder may take one more entry.
func (s *Shares[K]) Room(k K) bool { return s.by[k] < s.Multiple*(s.Size-s.used) }

// Held returns the number of entries of a holder.
func (s *Shares[K]) Held(k K) int { return s.by[k] }

// Take adds an entry to a holder.
func (s *Shares[K]) Take(k K) {
	if s.by == nil {
		s.by = map[K]int{}
	}
	s.by[k]++
	s.used++
}

// Give removes an entry from a holder.
func (s *Shares[K]) Give(k K) {
	s.used--
	if s.by[k]--; s.by[k] == 0 {
		delete(s.by, k)
	}
}

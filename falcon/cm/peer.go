package cm

import (
	"cmp"
	"slices"
)

// peer is what is known of another NIC.
type peer struct {
	Peer
	tenants  map[uint32]bool
	up       bool   // the link is up
	ready    bool   // and Hello arrived on it
	speaks   uint8  // version of its messages, where that is another; 0: ours, or not known
	instance uint64 // of the peer's process at the last Hello; 0: never heard of
	offers   map[endpointKey]seat
	conns    int            // connections in any state
	sources  Shares[uint32] // connections that its functions have asked for

	ports []Port // it has, as it said
	told  bool   // of ports of ours

	keys   map[Use]SA     // newest the peer gave us to seal with
	rekeys map[Use]SA     // what we gave it and it has not confirmed
	wants  map[Use]uint32 // SPIs for which we asked it for another
	retold Time           // not before then is it told of a key once more because of a wrong SPI
}

func newPeer(p Peer, most int) *peer {
	n := &peer{
		sources: Shares[uint32]{Size: most, Multiple: 3},
		Peer:    p, tenants: make(map[uint32]bool), offers: make(map[endpointKey]seat),
		keys: make(map[Use]SA), rekeys: make(map[Use]SA), wants: make(map[Use]uint32),
	}
	for _, t := range p.Tenants {
		n.tenants[t] = true
	}
	return n
}

// peers are the NICs that this one may talk to.
type peers struct {
	byHost map[HostID]*peer
	self   *peer // this NIC, for connections between its own functions
}

// newPeers returns the peers of a configuration, whose links are down.
func newPeers(c *Config) *peers {
	s := &peers{byHost: make(map[HostID]*peer), self: newPeer(Peer{Host: c.Host}, c.MaxPerPeer)}
	for _, p := range c.Peers {
		s.byHost[p.Host] = newPeer(p, c.MaxPerPeer)
	}
	s.self.up, s.self.ready = true, true
	return s
}

// of finds a peer, or this NIC.
func (s *peers) of(host HostID) *peer {
	if host == s.self.Host {
		return s.self
	}
	return s.byHost[host]
}

// sorted returns the peers in the order of their hosts, so that a run can be replayed.
func (s *peers) sorted() []*peer {
	list := make([]*peer, 0, len(s.byHost))
	for _, p := range s.byHost {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *peer) int { return cmp.Compare(a.Host, b.Host) })
	return list
}

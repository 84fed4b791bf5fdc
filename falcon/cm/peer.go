package cm

import (
	"fmt"
	"slices"
)

// endpointKey is an address: GIDs of different tenants may be equal.
type endpointKey struct {
	tenant uint32
	gid    [16]byte
}

func (e *Endpoint) seat() seat { return seat{e.Function, e.Shard} }

func (k endpointKey) String() string {
	return fmt.Sprintf("GID %s, tenant %d", gidString(k.gid), k.tenant)
}

// route says where an address is.
type route struct {
	peer *peer
	seat
}

// seat is the function that has an address, and its shard.
type seat struct {
	function uint32
	shard    uint8
}

// peer is what is known of another NIC.
type peer struct {
	Peer
	tenants  map[uint32]bool
	up       bool   // the link is up
	ready    bool   // and Hello arrived on it
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

// SetEndpoints says which functions this NIC has, replacing what it said
// before, and tells the peers that are up. Errors: ErrInvalid for a function of
// another host or an address named twice, ErrLimit if more than MaxEndpoints are
// offered to one peer; then nothing changes.
func (m *Manager) SetEndpoints(local []Endpoint) error {
	byKey, err := m.checkEndpoints(local)
	if err != nil {
		return err
	}
	m.local, m.endpoints = byKey, slices.Clone(local)
	m.self.offers = byKey
	clear(m.self.tenants)
	for _, e := range local {
		m.self.tenants[e.Tenant] = true
	}
	for k := range byKey { // our own word counts more than a peer's
		if r, ok := m.routes[k]; ok {
			delete(r.peer.offers, k)
			delete(m.routes, k)
			m.stats.RouteConflicts++
		}
	}
	for _, p := range m.sortedPeers() {
		if p.up {
			m.sayHello(p)
		}
	}
	return nil
}

// CheckEndpoints says whether SetEndpoints would do.
func (m *Manager) CheckEndpoints(local []Endpoint) error {
	_, err := m.checkEndpoints(local)
	return err
}

func (m *Manager) checkEndpoints(local []Endpoint) (map[endpointKey]seat, error) {
	byKey := make(map[endpointKey]seat, len(local))
	for _, e := range local {
		k := endpointKey{e.Tenant, e.GID}
		if e.Function > max24 || HostID(e.Function>>16) != m.cfg.Host {
			return nil, fmt.Errorf("cm: %v: function %#06x is not of host %d: %w", k, e.Function, m.cfg.Host, ErrInvalid)
		}
		if other, twice := byKey[k]; twice {
			return nil, fmt.Errorf("cm: %v: functions %#06x and %#06x: %w", k, other.function, e.Function, ErrInvalid)
		}
		byKey[k] = e.seat()
	}
	for _, p := range m.peers {
		n := 0
		for _, e := range local {
			if p.tenants[e.Tenant] {
				n++
			}
		}
		if n > MaxEndpoints {
			return nil, fmt.Errorf("cm: %d functions in the tenants shared with host %d, at most %d: %w", n, p.Host, MaxEndpoints, ErrLimit)
		}
	}
	return byKey, nil
}

func (m *Manager) sortedPeers() []*peer {
	s := make([]*peer, 0, len(m.peers))
	for _, p := range m.peers {
		s = append(s, p)
	}
	slices.SortFunc(s, func(a, b *peer) int { return int(a.Host) - int(b.Host) })
	return s
}

func (m *Manager) sayHello(p *peer) {
	h := Hello{Host: m.cfg.Host, Instance: m.instance}
	for _, e := range m.endpoints {
		if p.tenants[e.Tenant] {
			h.Endpoints = append(h.Endpoints, e)
		}
	}
	m.send(p, h.Append(nil))
}

// PeerUp says that the link to a peer is up. A host that is not configured is
// ignored.
func (m *Manager) PeerUp(now Time, host HostID) {
	p := m.peers[host]
	if p == nil {
		return
	}
	m.PeerDown(now, host)
	p.up, p.told = true, false
	m.sayHello(p)
	m.sayPorts(p)
}

// PeerDown says that the link to a peer is down and what was in flight on it
// lost.
func (m *Manager) PeerDown(now Time, host HostID) {
	p := m.peers[host]
	if p == nil || !p.up {
		return
	}
	p.up, p.ready = false, false
	for _, c := range m.sorted(func(c *conn) bool { return c.peer == p }) {
		_ = m.fire(now, c, evPeerDown, args{reason: ReasonPeerDown})
	}
}

// hello takes in what a peer offers. The first Hello of a link also settles the
// connections that were established before.
func (m *Manager) hello(now Time, p *peer, h *Hello) error {
	if h.Host != p.Host {
		return fmt.Errorf("cm: Hello on the link to host %d says host %d: %w", p.Host, h.Host, ErrProtocol)
	}
	if h.Instance == 0 || p.ready && h.Instance != p.instance {
		return fmt.Errorf("cm: Hello of host %d: instance %#x: %w", p.Host, h.Instance, ErrProtocol)
	}
	m.learn(p, h.Endpoints)
	if p.ready {
		return nil
	}
	p.ready = true
	restarted := p.instance != 0 && p.instance != h.Instance
	p.instance = h.Instance
	if restarted {
		m.stats.PeerRestarts++
		m.forget(now, p)
	} else {
		for _, c := range m.established(p) {
			m.confirm(now, c, nil)
		}
	}
	m.askAgain(now)
	return nil
}

// PeerRevoked says that a peer is not to be trusted any more: the link to it is down, its keys are
// forgotten, and its connections end.
func (m *Manager) PeerRevoked(now Time, host HostID) {
	p := m.peers[host]
	if p == nil {
		return
	}
	m.PeerDown(now, host)
	m.forget(now, p)
	m.learn(p, nil)
}

// forget drops the keys of a peer, its ports, and the connections that need them.
func (m *Manager) forget(now Time, p *peer) {
	m.res.ForgetSAs(p.Host)
	clear(p.keys)
	clear(p.rekeys)
	clear(p.wants)
	if len(p.ports) > 0 {
		m.learnPorts(p, nil)
	}
	for _, c := range m.established(p) {
		_ = m.fire(now, c, evPeerRestart, args{reason: ReasonPeerRestarted})
	}
}

func (m *Manager) established(p *peer) []*conn {
	return m.sorted(func(c *conn) bool { return c.peer == p && c.state == StateEstablished })
}

// learn replaces the routes to a peer's functions. An address someone else has
// stays with him, unless he is a peer whose link is down: his function may have
// moved.
func (m *Manager) learn(p *peer, offers []Endpoint) {
	for k := range p.offers {
		delete(m.routes, k)
	}
	clear(p.offers)
	for _, e := range offers {
		k := endpointKey{e.Tenant, e.GID}
		switch r, taken := m.routes[k]; {
		case !p.tenants[e.Tenant]:
			m.stats.RouteTenantRefused++
		case HostID(e.Function>>16) != p.Host:
			m.stats.RouteFunctionRefused++
		case m.isLocal(k), taken && (r.peer == p || r.peer.up):
			m.stats.RouteConflicts++
		default:
			if taken {
				delete(r.peer.offers, k)
			}
			p.offers[k] = e.seat()
			m.routes[k] = route{p, e.seat()}
		}
	}
}

func (m *Manager) isLocal(k endpointKey) bool {
	_, ok := m.local[k]
	return ok
}

package cm

// Stats returns the counters.
func (m *Manager) Stats() Stats { return m.out.stats }

// ConnectionInfo describes a connection. It holds no key.
type ConnectionInfo struct {
	Params
	State   State
	Created Time
}

// Connections lists the connections in the order of their IDs.
func (m *Manager) Connections() []ConnectionInfo {
	all := m.conns.sorted(func(*conn) bool { return true })
	s := make([]ConnectionInfo, len(all))
	for i, c := range all {
		s[i] = ConnectionInfo{c.par, c.state, c.created}
		s[i].TxKey = nil
	}
	return s
}

// PeerInfo describes a peer.
type PeerInfo struct {
	Peer
	Up          bool  // the link is up and Hello arrived
	Speaks      uint8 // version of its messages, if it is not Version; else 0
	Offers      int   // addresses of functions it has
	Told        int   // addresses of functions that were announced to it
	Connections int
	Functions   Refused // addresses of functions that it announces but does not get
	Ports       Refused // the same for ports
}

// Peers lists the peers by host.
func (m *Manager) Peers() []PeerInfo {
	var s []PeerInfo
	for _, p := range m.peers.sorted() {
		i := PeerInfo{Peer: p.Peer, Up: p.ready, Speaks: p.speaks, Connections: p.conns, Functions: p.refused.functions, Ports: p.refused.ports}
		for _, e := range m.dir.endpoints {
			if p.tenants[e.Tenant] {
				i.Told++
			}
		}
		m.dir.claims.has(p, func(Address, seat) { i.Offers++ })
		s = append(s, i)
	}
	return s
}

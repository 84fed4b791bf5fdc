package cm

import (
	"fmt"
	"slices"
)

// SetEndpoints says which functions this NIC has, replacing what it said
// before, and tells the peers that are up. Errors: ErrInvalid for a function of
// another host or an address named twice, ErrLimit if more than MaxEndpoints are
// offered to one peer; then nothing changes.
func (m *Manager) SetEndpoints(local []Endpoint) error {
	err := m.dir.set(local)
	if err == nil {
		m.own()
	}
	return err
}

// Hold says which further addresses functions of this NIC have without being reached by them, as
// those that are not in service: no peer gets them, whatever it tells of.
func (m *Manager) Hold(list []Address) {
	m.held = slices.Clone(list)
	m.own()
}

// own works out which addresses are ours. Peers that claim some have other ports by that.
func (m *Manager) own() {
	was, now := m.peers.ours, make(map[Address]bool, len(m.dir.local)+len(m.held))
	for a := range m.dir.local {
		now[a] = true
	}
	for _, a := range m.held {
		now[a] = true
	}
	m.peers.ours, m.dir.known = now, nil
	var others []*peer
	other := func(a Address) {
		if c := m.ports.claims.all[a]; len(c) > 0 {
			others = appendNew(others, c[0].peer)
		}
	}
	for a := range now {
		if !was[a] {
			other(a)
		}
	}
	for a := range was {
		if !now[a] {
			other(a)
		}
	}
	slices.SortFunc(others, (*peer).compare)
	m.ports.changed(others)
}

// CheckEndpoints says whether SetEndpoints would do.
func (m *Manager) CheckEndpoints(local []Endpoint) error {
	_, err := m.dir.check(local)
	return err
}

// Known returns what addresses functions have now. It is the same as before if nothing has changed.
func (m *Manager) Known() *Known { return m.dir.snapshot() }

// Offered says which peer offers a GID in a tenant, if one does whose link is up.
func (m *Manager) Offered(tenant uint32, gid [16]byte) (by HostID, ok bool) {
	return m.dir.offered(Address{tenant, gid})
}

// SetPorts says which ports this NIC has, replacing what it said before, and tells the peers that
// are up. Errors: ErrInvalid for a function of another host, ErrLimit if more than MaxPorts are to
// be told to one peer; then nothing changes.
func (m *Manager) SetPorts(local []Port) error { return m.ports.set(local) }

// CheckPorts says whether SetPorts would do.
func (m *Manager) CheckPorts(local []Port) error { return m.ports.check(local) }

// PortsOf lists what a peer said of its ports and is believed.
func (m *Manager) PortsOf(host HostID) []Port {
	if p := m.peers.byHost[host]; p != nil {
		return m.ports.of(p)
	}
	return nil
}

// Rekeying, per Use (Falcon §9.2.2.3 steps 2 to 4):
//
//	receiver                              transmitter
//	                ◀──── REKEYREQ ─────  RequestRekey: half used up
//	OutRekeyWanted
//	Rekey           ───── REKEY ───────▶  OutRekey: seal with it from now on
//	OutRekeyed      ◀──── REKEYACK ─────
//
// Both requests are repeated, when the link comes back and by a timer, until
// they are answered. Any message with an SA replaces the one before: the link
// keeps order, and each carries the newest when it is sent first.
// Rekey tells a peer to seal with sa from now on. OutRekeyed follows once it
// has confirmed; a later Rekey for the same use takes its place. Errors:
// ErrNotFound for a peer or a tenant not shared with it, ErrInvalid.
func (m *Manager) Rekey(u Use, sa SA) error { return m.keys.give(u, sa) }

// SPIRefused says that so many packets of connections with the peer did not pass the SPI check
// (Falcon §9.2.2.3). The peer is told again to seal with sa, at most once in each
// Config.RekeyTimeout. Errors as Rekey.
func (m *Manager) SPIRefused(now Time, u Use, sa SA, packets uint64) error {
	return m.keys.refused(now, u, sa, packets)
}

// RequestRekey asks a peer for another SA than the one with this SPI, 0 for
// none. OutRekey follows. Errors: ErrNotFound.
func (m *Manager) RequestRekey(u Use, spi uint32) error { return m.keys.request(u, spi) }

// PeerUp says that the link to a peer is up. A host that is not configured is
// ignored.
func (m *Manager) PeerUp(now Time, host HostID) {
	p := m.peers.byHost[host]
	if p == nil {
		return
	}
	m.PeerDown(now, host)
	p.up, p.told, p.speaks = true, false, 0
	m.dir.tell(p)
	m.ports.tell(p)
}

// PeerDown says that the link to a peer is down and what was in flight on it
// lost.
func (m *Manager) PeerDown(now Time, host HostID) {
	p := m.peers.byHost[host]
	if p == nil || !p.up {
		return
	}
	p.up, p.ready = false, false
	m.dir.claims.down(p)
	if others := m.ports.claims.down(p); len(others) > 0 {
		m.ports.changed(append(others, p))
	}
	for _, c := range m.conns.sorted(func(c *conn) bool { return c.peer == p }) {
		_ = m.shake.fire(now, c, evPeerDown, args{reason: ReasonPeerDown})
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
	m.dir.learn(p, h.Endpoints)
	if p.ready {
		return nil
	}
	p.ready = true
	restarted := p.instance != 0 && p.instance != h.Instance
	p.instance = h.Instance
	if restarted {
		m.out.stats.PeerRestarts++
		m.forget(now, p)
	} else {
		for _, c := range m.conns.established(p) {
			m.shake.confirm(now, c, nil)
		}
	}
	m.keys.askAgain(now)
	return nil
}

// ForgetPeer must be called when nothing that was agreed with a peer can be trusted any more. The
// link to the peer counts as down, its keys are forgotten, and its connections end. When the link is
// up again, Hello tells the peer another instance, so that it forgets what it had of this NIC, too.
func (m *Manager) ForgetPeer(now Time, host HostID) {
	p := m.peers.byHost[host]
	if p == nil {
		return
	}
	p.forgotten++
	m.PeerDown(now, host)
	m.forget(now, p)
	m.dir.learn(p, nil)
}

// otherVersion notes that a peer speaks another version. What was agreed with it before was agreed
// with a process that has ended since.
func (m *Manager) otherVersion(now Time, p *peer, version uint8) {
	p.ready, p.speaks = false, version
	m.forget(now, p)
	m.dir.learn(p, nil)
}

// forget drops the keys of a peer, its ports, and the connections that need them.
func (m *Manager) forget(now Time, p *peer) {
	m.shake.res.ForgetSAs(p.Host)
	clear(p.keys)
	clear(p.rekeys)
	clear(p.wants)
	if len(m.ports.claims.of[p]) > 0 {
		m.ports.learn(p, nil)
	}
	for _, c := range m.conns.established(p) {
		_ = m.shake.fire(now, c, evPeerRestart, args{reason: ReasonPeerRestarted})
	}
}

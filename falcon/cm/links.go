package cm

import (
	"fmt"
	"slices"
)

// SetEndpoints sets the functions of this NIC, replacing earlier ones, and informs the peers that
// are up. Errors: ErrInvalid for a function of another host or an address named twice, ErrLimit if
// more than MaxEndpoints would be offered to one peer; then nothing changes.
func (m *Manager) SetEndpoints(local []Endpoint) error {
	err := m.dir.set(local)
	if err == nil {
		m.own()
	}
	return err
}

// Hold sets further addresses that functions of this NIC have without being reachable at them, for
// example because they are not in service. No peer gets these addresses, whatever it announces.
func (m *Manager) Hold(list []Address) {
	m.held = slices.Clone(list)
	m.own()
}

// own computes which addresses are ours. If a peer claims one of them, its ports change as a
// result.
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

// CheckEndpoints reports whether SetEndpoints would succeed.
func (m *Manager) CheckEndpoints(local []Endpoint) error {
	_, err := m.dir.check(local)
	return err
}

// Known returns the present addresses of functions. The result is the same object until they
// change.
func (m *Manager) Known() *Known { return m.dir.snapshot() }

// Offered returns the peer that offers a GID in a tenant, if its link is up.
func (m *Manager) Offered(tenant uint32, gid [16]byte) (by HostID, ok bool) {
	return m.dir.offered(Address{tenant, gid})
}

// SetPorts sets the ports of this NIC, replacing earlier ones, and informs the peers that are up.
// Errors: ErrInvalid for a function of another host, ErrLimit if more than MaxPorts would be
// announced to one peer; then nothing changes.
func (m *Manager) SetPorts(local []Port) error { return m.ports.set(local) }

// CheckPorts reports whether SetPorts would succeed.
func (m *Manager) CheckPorts(local []Port) error { return m.ports.check(local) }

// PortsOf lists the ports of a peer that it announced and has.
func (m *Manager) PortsOf(host HostID) []Port {
	if p := m.peers.byHost[host]; p != nil {
		return m.ports.of(p)
	}
	return nil
}

// LimitMTU makes new connections with a peer use at most mtu bytes of ULP headers and data per packet:
// the path to it carries no more. mtu may be larger than Config.MTU, which limits them too.
func (m *Manager) LimitMTU(host HostID, mtu int) {
	if p := m.peers.byHost[host]; p != nil {
		p.mtu = min(max(mtu, MinMTU), m.cfg.MTU)
	}
}

// SharedTenant returns the lowest tenant in which a peer that is ready has an address. ok is false
// if there is none.
func (m *Manager) SharedTenant(host HostID) (tenant uint32, ok bool) {
	p := m.peers.byHost[host]
	if p == nil || !p.ready {
		return 0, false
	}
	m.dir.claims.has(p, func(a Address, _ seat) {
		if !ok || a.Tenant < tenant {
			tenant, ok = a.Tenant, true
		}
	})
	return tenant, ok
}

// Rekey tells a peer to seal with sa from now on. OutRekeyed follows when it has confirmed; a later
// Rekey for the same use replaces this one. Errors: ErrNotFound for an unknown peer or a tenant not
// shared with it, ErrInvalid.
func (m *Manager) Rekey(u Use, sa SA) error { return m.keys.give(u, sa) }

// SPIRefused reports that this many packets of the peer's connections failed the SPI check (Falcon
// §9.2.2.3). The peer is told again to seal with sa, at most once in each Config.RekeyTimeout.
// Errors as for Rekey.
func (m *Manager) SPIRefused(now Time, u Use, sa SA, packets uint64) error {
	return m.keys.refused(now, u, sa, packets)
}

// RequestRekey requests another SA from a peer in place of the one with this SPI; 0: there is none.
// OutRekey follows. Errors: ErrNotFound.
func (m *Manager) RequestRekey(u Use, spi uint32) error { return m.keys.request(u, spi) }

// PeerUp must be called when the link to a peer comes up. A host that is not configured is ignored.
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

// PeerDown must be called when the link to a peer goes down. What was in flight on it is lost.
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

// hello handles a peer's Hello. The first Hello of a link also decides what becomes of the
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
// link to the peer counts as down, its keys are forgotten, and its connections end. When the link
// is up again, Hello announces another instance to the peer, so that the peer also forgets what it
// had of this NIC.
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

// otherVersion records that a peer uses another protocol version. Earlier agreements were made with
// a process that has ended since, so they are dropped.
func (m *Manager) otherVersion(now Time, p *peer, version uint8) {
	p.ready, p.speaks = false, version
	m.forget(now, p)
	m.dir.learn(p, nil)
}

// forget drops a peer's keys, its ports, and the connections that need them.
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

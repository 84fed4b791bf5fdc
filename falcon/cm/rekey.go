package cm

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

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
func (m *Manager) Rekey(u Use, sa SA) error {
	p, err := m.sharing(u)
	if err != nil {
		return err
	}
	if err := sa.check(); err != nil {
		return fmt.Errorf("cm: new receive SA for %v: %w", u, err)
	}
	p.rekeys[u] = sa
	m.rekeyAt = min(m.rekeyAt, 0)
	return nil
}

// SPIRefused says that a packet of a connection with the peer did not pass the SPI check (Falcon
// §9.2.2.3). The peer is told again to seal with sa, at most once in each Config.RekeyTimeout.
// Errors as Rekey.
func (m *Manager) SPIRefused(now Time, u Use, sa SA) error {
	m.stats.SPIRefused++
	p, err := m.sharing(u)
	if err != nil || now < p.retold {
		return err
	}
	p.retold = now + m.cfg.RekeyTimeout
	return m.Rekey(u, sa)
}

// RequestRekey asks a peer for another SA than the one with this SPI, 0 for
// none. OutRekey follows. Errors: ErrNotFound.
func (m *Manager) RequestRekey(u Use, spi uint32) error {
	p, err := m.sharing(u)
	if err != nil {
		return err
	}
	p.wants[u] = spi
	m.rekeyAt = min(m.rekeyAt, 0)
	return nil
}

func (m *Manager) sharing(u Use) (*peer, error) {
	if p := m.peers[u.Peer]; p != nil && p.tenants[u.Tenant] && u.Class < numClasses && u.Shard < MaxShards {
		return p, nil
	}
	return nil, fmt.Errorf("cm: %v: %w", u, ErrNotFound)
}

// askAgain sends whatever is not answered yet, to all peers that listen.
func (m *Manager) askAgain(now Time) {
	m.rekeyAt = math.MaxInt64
	for _, p := range m.sortedPeers() {
		if len(p.rekeys)+len(p.wants) == 0 {
			continue
		}
		if !p.ready {
			continue // its Hello brings us back here
		}
		for _, u := range sortedUses(p.rekeys) {
			r := REKEY{u.Tenant, u.Class, u.Shard, p.rekeys[u]}
			m.send(p, r.Append(nil))
		}
		for _, u := range sortedUses(p.wants) {
			r := REKEYREQ{u.Tenant, u.Class, u.Shard, p.wants[u]}
			m.send(p, r.Append(nil))
		}
		m.rekeyAt = now + m.cfg.RekeyTimeout
	}
}

func sortedUses[V any](s map[Use]V) []Use {
	return slices.SortedFunc(maps.Keys(s), Use.Compare)
}

// rekey takes a new SA of the peer.
func (m *Manager) rekey(now Time, p *peer, r *REKEY) {
	u := Use{p.Host, r.Shard, r.Tenant, r.Class}
	if !p.tenants[u.Tenant] {
		m.stats.TenantRefused++
		return
	}
	m.newKey(p, u, r.SA)
	m.emit(Output{Kind: OutRekey, Use: u, SA: r.SA})
	ack := REKEYACK{u.Tenant, u.Class, u.Shard, r.SA.SPI, pspTime(now)}
	m.send(p, ack.Append(nil))
}

// newKey remembers what the peer wants us to seal with.
func (m *Manager) newKey(p *peer, u Use, sa SA) {
	if p.keys[u].SPI != sa.SPI {
		m.stats.KeysReceived++
	}
	p.keys[u] = sa
	if spi, ok := p.wants[u]; ok && spi != sa.SPI {
		delete(p.wants, u)
	}
}

func (m *Manager) rekeyAck(_ Time, p *peer, a *REKEYACK) {
	u := Use{p.Host, a.Shard, a.Tenant, a.Class}
	if sa, ok := p.rekeys[u]; !ok || sa.SPI != a.SPI {
		return // of an SA that was replaced meanwhile, or told twice
	}
	delete(p.rekeys, u)
	m.stats.Rekeyed++
	m.emit(Output{Kind: OutRekeyed, Use: u, SA: SA{SPI: a.SPI}, Time: a.Time})
}

func (m *Manager) rekeyReq(_ Time, p *peer, r *REKEYREQ) {
	u := Use{p.Host, r.Shard, r.Tenant, r.Class}
	if !p.tenants[u.Tenant] {
		m.stats.TenantRefused++
		return
	}
	if sa, under := p.rekeys[u]; under && sa.SPI != r.SPI {
		return // on its way
	}
	m.stats.RekeyRequests++
	m.emit(Output{Kind: OutRekeyWanted, Use: u, SA: SA{SPI: r.SPI}})
}

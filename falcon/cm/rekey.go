package cm

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Rekeying, per peer, tenant and class (Falcon §9.2.2.3 steps 2 to 4):
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

// saKey names what an SA is for, at one peer.
type saKey struct {
	tenant uint32
	class  Class
}

// Rekey tells a peer to seal with sa from now on. OutRekeyed follows once it
// has confirmed; a later Rekey for the same use takes its place. Errors:
// ErrNotFound for a peer or a tenant not shared with it, ErrInvalid.
func (m *Manager) Rekey(host HostID, tenant uint32, class Class, sa SA) error {
	p, err := m.sharing(host, tenant, class)
	if err != nil {
		return err
	}
	if err := sa.check(); err != nil {
		return fmt.Errorf("cm: new receive SA for host %d, tenant %d: %w", host, tenant, err)
	}
	k := saKey{tenant, class}
	p.rekeys[k] = sa
	m.rekeyAt = min(m.rekeyAt, 0)
	return nil
}

// SPIRefused says that a packet of a connection with the peer did not pass the SPI check (Falcon
// §9.2.2.3). The peer is told again to seal with sa, at most once in each Config.RekeyTimeout.
// Errors as Rekey.
func (m *Manager) SPIRefused(now Time, host HostID, tenant uint32, class Class, sa SA) error {
	m.stats.SPIRefused++
	p, err := m.sharing(host, tenant, class)
	if err != nil || now < p.retold {
		return err
	}
	p.retold = now + m.cfg.RekeyTimeout
	return m.Rekey(host, tenant, class, sa)
}

// RequestRekey asks a peer for another SA than the one with this SPI, 0 for
// none. OutRekey follows. Errors: ErrNotFound.
func (m *Manager) RequestRekey(host HostID, tenant uint32, class Class, spi uint32) error {
	p, err := m.sharing(host, tenant, class)
	if err != nil {
		return err
	}
	p.wants[saKey{tenant, class}] = spi
	m.rekeyAt = min(m.rekeyAt, 0)
	return nil
}

func (m *Manager) sharing(host HostID, tenant uint32, class Class) (*peer, error) {
	if p := m.peers[host]; p != nil && p.tenants[tenant] && class < numClasses {
		return p, nil
	}
	return nil, fmt.Errorf("cm: host %d, tenant %d, class %v: %w", host, tenant, class, ErrNotFound)
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
		for _, k := range sortedKeys(p.rekeys) {
			r := REKEY{k.tenant, k.class, p.rekeys[k]}
			m.send(p, r.Append(nil))
		}
		for _, k := range sortedKeys(p.wants) {
			r := REKEYREQ{k.tenant, k.class, p.wants[k]}
			m.send(p, r.Append(nil))
		}
		m.rekeyAt = now + m.cfg.RekeyTimeout
	}
}

func sortedKeys[V any](s map[saKey]V) []saKey {
	keys := make([]saKey, 0, len(s))
	for k := range s {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b saKey) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.class, b.class))
	})
	return keys
}

// rekey takes a new SA of the peer.
func (m *Manager) rekey(now Time, p *peer, r *REKEY) {
	k := saKey{r.Tenant, r.Class}
	if !p.tenants[k.tenant] {
		m.stats.TenantRefused++
		return
	}
	m.newKey(p, k, r.SA)
	m.emit(Output{Kind: OutRekey, Peer: p.Host, Tenant: k.tenant, Class: k.class, SA: r.SA})
	ack := REKEYACK{k.tenant, k.class, r.SA.SPI, pspTime(now)}
	m.send(p, ack.Append(nil))
}

// newKey remembers what the peer wants us to seal with.
func (m *Manager) newKey(p *peer, k saKey, sa SA) {
	if p.keys[k].SPI != sa.SPI {
		m.stats.KeysReceived++
	}
	p.keys[k] = sa
	if spi, ok := p.wants[k]; ok && spi != sa.SPI {
		delete(p.wants, k)
	}
}

func (m *Manager) rekeyAck(_ Time, p *peer, a *REKEYACK) {
	k := saKey{a.Tenant, a.Class}
	if sa, ok := p.rekeys[k]; !ok || sa.SPI != a.SPI {
		return // of an SA that was replaced meanwhile, or told twice
	}
	delete(p.rekeys, k)
	m.stats.Rekeyed++
	m.emit(Output{Kind: OutRekeyed, Peer: p.Host, Tenant: k.tenant, Class: k.class, SA: SA{SPI: a.SPI}, Time: a.Time})
}

func (m *Manager) rekeyReq(_ Time, p *peer, r *REKEYREQ) {
	k := saKey{r.Tenant, r.Class}
	if !p.tenants[k.tenant] {
		m.stats.TenantRefused++
		return
	}
	if sa, under := p.rekeys[k]; under && sa.SPI != r.SPI {
		return // on its way
	}
	m.stats.RekeyRequests++
	m.emit(Output{Kind: OutRekeyWanted, Peer: p.Host, Tenant: k.tenant, Class: k.class, SA: SA{SPI: r.SPI}})
}

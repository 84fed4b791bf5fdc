package gateway

import (
	"net/netip"

	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// Tunnel is where packets for a peer's functions in a tenant go.
type Tunnel struct {
	Peer     uint8
	Tenant   uint32
	Underlay netip.Addr // of the peer

	asked bool           // the peer for a key
	tx    *security.TxSA // nil: no key yet
}

// Sealed tells whether the peer has given us a key.
func (t *Tunnel) Sealed() bool { return t.tx != nil }

// Tunnel returns the tunnel to a peer in a tenant, nil when no port of ours or no address of the
// peer's needs one.
func (g *Gateway) Tunnel(peer uint8, tenant uint32) *Tunnel {
	if t := g.tenants[tenant]; t != nil {
		return t.tunnels[peer]
	}
	return nil
}

// Tunnels calls f for each tunnel to a peer, in the order of tenants.
func (g *Gateway) Tunnels(peer uint8, f func(*Tunnel)) {
	for _, t := range g.sorted() {
		if u := t.tunnels[peer]; u != nil {
			f(u)
		}
	}
}

func (g *Gateway) tunnel(t *tenant, peer uint8) *Tunnel {
	u := t.tunnels[peer]
	if u == nil {
		u = &Tunnel{Peer: peer, Tenant: t.Tenant, Underlay: g.peers[peer].Underlay}
		t.tunnels[peer] = u
	}
	return u
}

// AskForKeys asks a peer for keys of the tunnels to it that have none.
func (g *Gateway) AskForKeys(peer uint8, r security.Requester) {
	g.Tunnels(peer, func(t *Tunnel) {
		if t.asked = true; t.tx == nil {
			_ = r.RequestRekey(security.Use{Peer: peer, Shard: g.shard, Tenant: t.Tenant, Class: cm.ClassGateway}, 0)
		}
	})
}

// TakeKey makes a tunnel seal with what the peer gave us, if it was asked for.
func (g *Gateway) TakeKey(keys *security.TxSAs, u security.Use, sa cm.SA) error {
	t := g.Tunnel(u.Peer, u.Tenant)
	if t == nil || !t.asked {
		return nil
	}
	tx, err := keys.Give(u, sa)
	if err == nil {
		t.tx = tx
	}
	return err
}

// ForgetKeys drops what a peer gave us that has lost it.
func (g *Gateway) ForgetKeys(peer uint8) {
	g.Tunnels(peer, func(t *Tunnel) { t.tx = nil })
}

// HasKey tells whether packets of a tunnel can be sealed; one that cannot is counted.
func (g *Gateway) HasKey(t *Tunnel) bool {
	if t.tx == nil {
		g.stats.Reasons[DropNoKey]++
	}
	return t.tx != nil
}

// Seal seals a packet for a tunnel that has a key into b, and returns its length there.
func (g *Gateway) Seal(now int64, t *Tunnel, b, packet []byte) (sealed int, err error) {
	sealed, err = t.tx.SealPlain(now, b, packet)
	if err == nil {
		g.stats.TunnelPackets++
		g.stats.TunnelBytes += uint64(len(packet))
	}
	return sealed, err
}

// OwnCookie tells whether an opened packet came under the cookie of the tenant that its key is for;
// one that did not is counted.
func (g *Gateway) OwnCookie(o *security.Opened) bool {
	ok := o.OwnCookie()
	if !ok {
		g.stats.Reasons[DropWrongVC]++
	}
	return ok
}

// Opened finds the IP packet in what was opened, and the tunnel it came through; nil: it is counted.
func (g *Gateway) Opened(o *security.Opened) (t *Tunnel, packet []byte) {
	packet, ok := o.Plain()
	if !ok {
		g.stats.Reasons[DropHeader]++
		return nil, nil
	}
	if t = g.Tunnel(o.Use.Peer, o.Use.Tenant); t == nil {
		g.stats.Reasons[DropWrongSource]++ // says it has no port, or has not said yet that it has
	}
	return t, packet
}

package gateway

import (
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// AskForKeys asks peers for keys of the tunnels that the packets of a port may need and that have
// none. It is called when the port has come to its tenant, or a peer.
func (g *Gateway) AskForKeys(p *Endpoint, r security.Requester) {
	g.follow(p)
	for _, peer := range *p.network.peers.Load() {
		g.askForKey(peer, p.Tenant, r)
	}
}

// PeerChanged is told that the routes have other addresses of a peer than before: it may have to be
// asked for keys.
func (g *Gateway) PeerChanged(peer uint8, r security.Requester) {
	asked := map[uint32]bool{}
	for _, p := range g.ports {
		if g.follow(p); !asked[p.Tenant] && p.network.reaches(peer) {
			asked[p.Tenant] = true
			g.askForKey(peer, p.Tenant, r)
		}
	}
}

func (g *Gateway) askForKey(peer uint8, tenant uint32, r security.Requester) {
	t := g.Tunnel(peer, tenant)
	if t == nil || t.tx != nil {
		return
	}
	t.asked = true
	_ = r.RequestRekey(g.use(t), 0)
}

func (g *Gateway) use(t *Tunnel) security.Use {
	return security.Use{Peer: t.Peer, Shard: g.shard, Tenant: t.Tenant, Class: cm.ClassGateway}
}

// TakeKey makes a tunnel seal with what the peer gave us, if it was asked for.
func (g *Gateway) TakeKey(keys *security.TxSAs, u security.Use, sa cm.SA) error {
	t := g.tunnels[reach{u.Peer, u.Tenant}]
	if t == nil || !t.asked {
		return nil
	}
	tx, err := keys.Give(u, sa)
	if err == nil {
		t.tx = tx
	}
	return err
}

// Tunnels calls f for each tunnel.
func (g *Gateway) Tunnels(f func(*Tunnel)) {
	for _, t := range g.tunnels {
		f(t)
	}
}

// ForgetKeys drops what a peer gave us that has lost it.
func (g *Gateway) ForgetKeys(peer uint8) {
	for k, t := range g.tunnels {
		if k.peer == peer {
			t.tx = nil
		}
	}
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

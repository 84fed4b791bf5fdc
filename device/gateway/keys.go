package gateway

import (
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// AskForKeys asks peers for the missing keys of the tunnels that a port's packets may need. It is
// called when the port joins its tenant, and when a peer appears.
func (ts *Tunnels) AskForKeys(p *Endpoint, r security.Requester) {
	for _, peer := range *ts.routes.network(p.Tenant).peers.Load() {
		ts.ask(peer, p.Tenant, r)
	}
}

func (ts *Tunnels) ask(peer uint8, tenant uint32, r security.Requester) {
	t := ts.To(peer, tenant)
	if t == nil || t.tx != nil {
		return
	}
	t.asked = true
	_ = r.RequestRekey(ts.use(t), 0)
}

func (ts *Tunnels) use(t *Tunnel) security.Use {
	return security.Use{Peer: t.Peer, Shard: ts.shard, Tenant: t.Tenant, Class: cm.ClassGateway}
}

// TakeKey makes a tunnel seal with the key that the peer gave, if the key was asked for.
func (ts *Tunnels) TakeKey(keys *security.TxSAs, u security.Use, sa cm.SA) error {
	t := ts.list[reach{u.Peer, u.Tenant}]
	if t == nil || !t.asked {
		return nil
	}
	tx, err := keys.Give(u, sa)
	if err == nil {
		t.tx = tx
	}
	return err
}

// ForgetKeys drops the keys of a peer that has lost them.
func (ts *Tunnels) ForgetKeys(peer uint8) {
	for k, t := range ts.list {
		if k.peer == peer {
			t.tx = nil
		}
	}
}

// HasKey reports whether a tunnel's packets can be sealed. If not, it counts a drop.
func (ts *Tunnels) HasKey(t *Tunnel) bool {
	if t.tx == nil {
		ts.stats.Reasons[DropNoKey]++
	}
	return t.tx != nil
}

// Seal seals a packet for a tunnel that has a key. It writes to b and returns the sealed length.
func (ts *Tunnels) Seal(now int64, t *Tunnel, b, packet []byte) (sealed int, err error) {
	sealed, err = t.tx.SealPlain(now, b, packet)
	if err == nil {
		ts.stats.TunnelPackets++
		ts.stats.TunnelBytes += uint64(len(packet))
	}
	return sealed, err
}

// OwnCookie reports whether an opened packet had the cookie of its key's tenant. If not, it counts
// a drop.
func (ts *Tunnels) OwnCookie(o *security.Opened) bool {
	ok := o.OwnCookie()
	if !ok {
		ts.stats.Reasons[DropWrongVC]++
	}
	return ok
}

// Opened returns the IP packet in an opened packet and the tunnel it came through. If there is
// none, it counts a drop and returns a nil tunnel.
func (ts *Tunnels) Opened(o *security.Opened) (t *Tunnel, packet []byte) {
	packet, ok := o.Plain()
	if !ok {
		ts.stats.Reasons[DropHeader]++
		return nil, nil
	}
	if t = ts.To(o.Use.Peer, o.Use.Tenant); t == nil {
		ts.stats.Reasons[DropWrongSource]++ // the peer announced no port in the tenant, or has not yet
	}
	return t, packet
}

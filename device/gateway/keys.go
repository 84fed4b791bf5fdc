package gateway

import (
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// AskForKeys asks peers for keys of the tunnels that the packets of a port may need and that have
// none. It is called when the port has come to its tenant, or a peer.
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

// TakeKey makes a tunnel seal with what the peer gave us, if it was asked for.
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

// ForgetKeys drops what a peer gave us that has lost it.
func (ts *Tunnels) ForgetKeys(peer uint8) {
	for k, t := range ts.list {
		if k.peer == peer {
			t.tx = nil
		}
	}
}

// HasKey tells whether packets of a tunnel can be sealed; one that cannot is counted.
func (ts *Tunnels) HasKey(t *Tunnel) bool {
	if t.tx == nil {
		ts.stats.Reasons[DropNoKey]++
	}
	return t.tx != nil
}

// Seal seals a packet for a tunnel that has a key into b, and returns its length there.
func (ts *Tunnels) Seal(now int64, t *Tunnel, b, packet []byte) (sealed int, err error) {
	sealed, err = t.tx.SealPlain(now, b, packet)
	if err == nil {
		ts.stats.TunnelPackets++
		ts.stats.TunnelBytes += uint64(len(packet))
	}
	return sealed, err
}

// OwnCookie tells whether an opened packet came under the cookie of the tenant that its key is for;
// one that did not is counted.
func (ts *Tunnels) OwnCookie(o *security.Opened) bool {
	ok := o.OwnCookie()
	if !ok {
		ts.stats.Reasons[DropWrongVC]++
	}
	return ok
}

// Opened finds the IP packet in what was opened, and the tunnel it came through; nil: it is
// counted.
func (ts *Tunnels) Opened(o *security.Opened) (t *Tunnel, packet []byte) {
	packet, ok := o.Plain()
	if !ok {
		ts.stats.Reasons[DropHeader]++
		return nil, nil
	}
	if t = ts.To(o.Use.Peer, o.Use.Tenant); t == nil {
		ts.stats.Reasons[DropWrongSource]++ // says it has no port, or has not said yet that it has
	}
	return t, packet
}

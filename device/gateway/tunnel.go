package gateway

import (
	"bytes"
	"encoding/binary"
	"maps"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// reach identifies a tunnel.
type reach struct {
	peer   cm.PeerID
	tenant uint32
}

// Remote says who and where a peer is.
type Remote struct {
	Name     string
	Underlay netip.AddrPort // where it receives
}

// Tunnel leads to a peer's functions in a tenant.
type Tunnel struct {
	Peer   cm.PeerID
	Tenant uint32
	Remote

	asked bool           // the peer was asked for a key
	tx    *security.TxSA // nil: no key yet
}

// flow returns the number that packets from the peer are charged to. It is not a function's number,
// since those begin with a host, which is never 0.
func (t *Tunnel) flow() uint32 { return uint32(t.Peer) }

// Sealed reports whether the peer has given a key.
func (t *Tunnel) Sealed() bool { return t.tx != nil }

// Tunnels holds the tunnels of a shard, with the keys that peers gave for them.
type Tunnels struct {
	shard  uint8
	peers  map[cm.PeerID]Remote
	routes *Routes
	list   map[reach]*Tunnel
	stats  *Stats // the gateway's
}

func (ts *Tunnels) init(shard uint8, routes *Routes, stats *Stats) {
	*ts = Tunnels{shard: shard, routes: routes, peers: map[cm.PeerID]Remote{}, list: map[reach]*Tunnel{}, stats: stats}
}

// SetPeer says where a peer is. Tunnels to it lead there from now on.
func (ts *Tunnels) SetPeer(peer cm.PeerID, is Remote) {
	ts.peers[peer] = is
	for k, t := range ts.list {
		if k.peer == peer {
			t.Remote = is
		}
	}
}

// RemovePeer ends the tunnels to a peer. The routes lead nowhere any more.
func (ts *Tunnels) RemovePeer(peer cm.PeerID) {
	ts.ForgetKeys(peer)
	delete(ts.peers, peer)
	maps.DeleteFunc(ts.list, func(k reach, _ *Tunnel) bool { return k.peer == peer })
}

// To returns the tunnel to a peer in a tenant, or nil when the peer has no address in the tenant, or
// is gone.
func (ts *Tunnels) To(peer cm.PeerID, tenant uint32) *Tunnel {
	t := ts.list[reach{peer, tenant}]
	if at, known := ts.peers[peer]; t == nil && known && ts.routes.Reaches(peer, tenant) {
		t = &Tunnel{Peer: peer, Tenant: tenant, Remote: at}
		ts.list[reach{peer, tenant}] = t
	}
	return t
}

// Each calls f for each tunnel.
func (ts *Tunnels) Each(f func(*Tunnel)) {
	for _, t := range ts.list {
		f(t)
	}
}

// AskForKeys asks peers for the missing keys of the tunnels that a port's packets may need. It is
// called when the port joins its tenant, and when a peer appears.
func (ts *Tunnels) AskForKeys(p *Endpoint, r security.Requester) {
	for _, peer := range *ts.routes.network(p.Tenant).peers.Load() {
		ts.ask(peer, p.Tenant, r)
	}
}

func (ts *Tunnels) ask(peer cm.PeerID, tenant uint32, r security.Requester) {
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
func (ts *Tunnels) ForgetKeys(peer cm.PeerID) {
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

// Opened returns the IP packet in an opened packet and the tunnel it came through: the key tells
// which peer sealed it for which tenant, and the cookie must agree. If there is none, it counts a
// drop and returns a nil tunnel.
func (ts *Tunnels) Opened(o *security.Opened) (t *Tunnel, packet []byte) {
	if !o.OwnCookie() {
		ts.stats.Reasons[DropWrongVC]++
		return nil, nil
	}
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

// FromTunnel takes a packet that a peer sealed and queues it for its port. frame holds room for an
// Ethernet header, then the packet. outer is the ECN field of the outer header.
func (g *Gateway) FromTunnel(from *Tunnel, frame []byte, outer uint8) {
	defer g.survive(nil, g.mark(), frame)
	g.stats.TunnelIn++
	g.stats.TunnelInBytes += uint64(len(frame) - ethLen)
	p, why := g.fromTunnel(from, frame, outer)
	if why != none {
		g.stats.drop(p, why)
	}
}

func (g *Gateway) fromTunnel(from *Tunnel, frame []byte, outer uint8) (*Endpoint, Reason) {
	b := frame[ethLen:]
	h, why := parseIP(b)
	switch {
	case why != none:
		return nil, why
	case h.total != len(b): // nothing may hide behind the packet
		return nil, DropTruncated
	case h.proto == protoFalcon:
		return nil, DropFalcon
	case h.dst.IsMulticast():
		return nil, g.groupFromTunnel(from, frame, &h, outer)
	}
	c, why := g.lookUp(from, b, &h)
	if why != none {
		return nil, why
	}
	split := h.total > c.to.MTU
	if split && !(&Offload{}).splits(b, &h, c.to.MTU) {
		return c.port, DropPortTooBig
	}
	switch ecn, ok := decapsulate(h.ecn(), outer); {
	case !ok:
		return c.port, DropECN
	case ecn != h.ecn():
		h.setECN(b, ecn)
	}
	if h.fragment {
		g.stats.Reasons[CountFragments]++
	}
	if h.nested(b) {
		g.stats.Reasons[CountNested]++
	}
	if split {
		g.stats.Reasons[CountFragmented]++
		return c.port, g.splitTo(from.flow(), &c.to, c.port, b, h, Offload{})
	}
	if c.port == nil {
		binary.BigEndian.PutUint16(frame[12:], h.etherType())
		return nil, g.handOver(from.flow(), &c.to, frame, Offload{})
	}
	if c.port.deliver(b, &h, Offload{}) {
		return c.port, none
	}
	return c.port, g.out.joinOrQueue(c.port, frame, &h)
}

// cache remembers the way of the last packet from a tunnel, so that the next packet of its flow
// needs no look-up.
type cache struct {
	epoch
	from  *Tunnel
	v6    bool
	addrs [32]byte
	to    Target
	port  *Endpoint // nil: of another shard
}

// lookUp finds where a packet goes: by the tunnel's tenant, which the key determines, and the inner
// destination address. The sender must be a function of that peer.
func (g *Gateway) lookUp(from *Tunnel, b []byte, h *header) (*cache, Reason) {
	addrs := b[12:20]
	if h.v6 {
		addrs = b[8:40]
	}
	c, now := &g.last, g.epoch()
	if c.from == from && c.epoch == now && c.v6 == h.v6 && bytes.Equal(c.addrs[:len(addrs)], addrs) {
		return c, none
	}
	n := g.routes.network(from.Tenant)
	if src, ok := n.find(h.src); !ok || src.Kind != ToPeer || src.Peer != from.Peer {
		return nil, DropWrongSource
	}
	to, ok := n.find(h.dst)
	if !ok || to.Kind != ToPort {
		return nil, DropNoPort
	}
	*c = cache{epoch: now, from: from, v6: h.v6, to: to, port: g.here(&to)}
	copy(c.addrs[:], addrs)
	return c, none
}

// decapsulate combines inner and outer ECN (RFC 6040 §4.2): a congestion mark of the path is passed
// to the receiver. If the inner header is not ECN-capable, ok is false for a CE mark. The sender's
// DSCP is kept: nothing authenticates that of the outer header (RFC 2983 §4.1, RFC 4301 §5.1.2.1).
func decapsulate(inner, outer uint8) (ecn uint8, ok bool) {
	switch {
	case outer == ecnCE:
		return ecnCE, inner != 0
	case outer == ecnECT1 && inner == ecnECT0:
		return ecnECT1, true
	}
	return inner, true
}

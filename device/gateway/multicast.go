package gateway

import (
	"net/netip"
	"slices"

	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/fair"
	"github.com/falcon-vnic/vnic/internal/pool"
	"github.com/falcon-vnic/vnic/internal/ring"
)

// Only multicast of the functions themselves (Gateway.Groups) is carried, to every function of the
// tenant that claims it; each function checks its own groups. Each peer and each other shard gets
// one copy, which its gateway distributes there.
//
//	function ─▶ FromFunction ─┬─▶ NextCopy: a tunnel to each peer of the tenant ─▶ FromTunnel ┐
//	                          ├─▶ each other shard ─▶ GroupFromShard ─────────────────────────┤
//	                          └─▶ functions of this shard, the sender too  ◀──────────────────┘
//
// One packet may be for hundreds of functions, and for hundreds of queue pairs of each. Every copy
// is charged to the sender of the packet, a function or a peer. A Step makes a bounded number of
// copies (castBudget), and senders with more copies to make share the next Steps in turn (package
// fair). A waiting packet is copied once, and the number that wait is bounded. A function of this
// shard has at most one packet waiting, and sends no further datagrams meanwhile (Casting).
//
// Multicast that guests send through their ports is not carried.

// Bounds of multicast work.
const (
	castBudget = 64 // copies made and functions looked at in a Step
	castTurn   = 16 // of them for one sender before the next has its turn
	maxCasts   = 64 // waiting packets of one sender
)

// receivers are those who get the multicast of a tenant.
type receivers struct {
	here   []*Endpoint // of this shard
	beyond []uint8     // other shards
	peers  []groupPeer
}

// groupPeer is a peer with functions in the tenant.
type groupPeer struct {
	id  cm.PeerID
	mtu int // of the path to it, bytes of IP packet
}

// receiverCache holds the receivers found in an epoch.
type receiverCache struct {
	epoch
	of map[uint32]*receivers // by tenant
}

// find returns the receivers of a tenant's multicast, cached until anything changes.
func (rc *receiverCache) find(g *Gateway, n *network) *receivers {
	if now := g.epoch(); rc.of == nil || rc.epoch != now {
		*rc = receiverCache{now, map[uint32]*receivers{}}
	}
	a := rc.of[n.tenant]
	if a == nil {
		a = gather(n, g.ports, g.shard, g.routes.mtu)
		rc.of[n.tenant] = a
	}
	return a
}

func gather(n *network, ports []*Endpoint, shard uint8, mtu int) *receivers {
	a := &receivers{}
	for _, id := range *n.peers.Load() {
		a.peers = append(a.peers, groupPeer{id, mtu})
	}
	for _, p := range ports {
		if p.up && p.Tenant == n.tenant {
			a.here = append(a.here, p)
		}
	}
	n.addrs.Each(func(_ netip.Addr, to Target) {
		if i := slices.IndexFunc(a.peers, func(p groupPeer) bool { return p.id == to.Peer }); to.Kind == ToPeer && i >= 0 {
			a.peers[i].mtu = min(a.peers[i].mtu, to.MTU)
		}
		if to.Kind == ToPort && to.Shard != shard && !slices.Contains(a.beyond, to.Shard) {
			a.beyond = append(a.beyond, to.Shard)
		}
	})
	slices.Sort(a.beyond)
	return a
}

// casts holds the multicast packets that functions of this shard have yet to receive.
type casts struct {
	round fair.Round[caster]
	of    map[uint32]*caster // by the number that is charged
	free  pool.Pool[cast]
	left  int // left of castBudget in this Step
}

// caster is a sender of multicast packets, with those that wait.
type caster struct {
	flow    fair.Flow[caster]
	waiting ring.Queue[*cast]
}

// cast is a multicast packet and the state of its distribution.
type cast struct {
	frame  []byte
	h      header
	tenant uint32
	to     []*Endpoint // functions that have yet to receive it
	at     int         // number of queue pairs of to[0] that have received it
}

func (cs *casts) init() {
	cs.of, cs.round.Quantum, cs.left = map[uint32]*caster{}, castTurn, castBudget
}

// copies delivers the packet to further functions and queue pairs. It returns how much of the
// budget most that took: one for each function that it looks at, which includes the function's
// first copy, and one for each further copy.
func (c *cast) copies(most int) (n int) {
	for len(c.to) > 0 && n < most {
		p, more := c.to[0], false
		n++ // for looking at the function
		if p.up && p.Tenant == c.tenant && p.wants(c.frame[ethLen:], &c.h) {
			var made int
			made, more = p.take(c.frame[ethLen:ethLen+c.h.total], c.at, max(most-n, 1))
			n += max(made-1, 0)
			c.at += made
		}
		if !more {
			c.to, c.at = c.to[1:], 0
		}
	}
	return n
}

// Cast makes copies of waiting multicast packets, as many as a Step may. It is called once in each
// Step, before new input is processed.
func (g *Gateway) Cast() {
	cs := &g.casts
	cs.left = castBudget
	for cs.left > 0 && !cs.round.Empty() {
		w := cs.round.Next()
		c := *w.waiting.Pop() // a packet that makes this code panic is lost
		g.castSome(w, c)
		if len(c.to) > 0 {
			*w.waiting.PushFront() = c
		} else {
			cs.free.Put(c)
		}
		cs.round.Settle(&w.flow, w.waiting.Len() > 0, false)
	}
}

// castSome makes copies of a packet for one turn of its sender.
func (g *Gateway) castSome(w *caster, c *cast) {
	before := c.to
	c.to = nil
	defer g.survive(nil, g.mark(), c.frame)
	x := cast{c.frame, c.h, c.tenant, before, c.at}
	n := x.copies(min(castTurn, g.casts.left))
	g.casts.left -= n
	w.flow.Charge(n)
	c.to, c.at = x.to, x.at
}

// Casting reports whether a multicast packet of sender from, a function or a peer, waits for copies
// to be made; from 0 means any sender.
func (g *Gateway) Casting(from uint32) bool {
	if from == 0 {
		return !g.casts.round.Empty()
	}
	w := g.casts.of[from]
	return w != nil && w.waiting.Len() > 0
}

// share delivers a multicast packet to all functions of this shard: at once as far as the sender
// and the Step allow, the rest later.
func (g *Gateway) share(from uint32, n *network, a *receivers, frame []byte, h *header) Reason {
	cs := &g.casts
	w := cs.of[from]
	if w == nil {
		w = &caster{}
		cs.of[from] = w
	}
	c := cast{frame, *h, n.tenant, a.here, 0}
	if w.waiting.Len() == 0 && cs.left > 0 {
		made := c.copies(min(castTurn, cs.left))
		cs.left -= made
		w.flow.Charge(made)
	}
	switch {
	case len(c.to) == 0:
		return none
	case w.waiting.Len() == maxCasts || h.total > maxCast:
		return DropGroupFull
	}
	kept := cs.free.Get()
	c.frame = append(kept.frame[:0], frame[:ethLen+h.total]...)
	*kept = c
	*w.waiting.Push() = kept
	cs.round.Enter(&w.flow, w, false)
	return none
}

// maxCast is longer than any packet of a function.
const maxCast = 4096 + 256

// shareAll delivers a multicast packet to all functions of this NIC.
func (g *Gateway) shareAll(from uint32, n *network, frame []byte, h *header) (*receivers, Reason) {
	a := g.receivers.find(g, n)
	for _, to := range a.beyond {
		if g.Handover == nil || !g.Handover.ToGroup(to, from, n.tenant, frame) {
			g.stats.drop(nil, DropShardFull)
			continue
		}
		g.stats.HandedOver++
	}
	return a, g.share(from, n, a, frame, h)
}

// GroupFromShard takes a multicast packet that another shard handed over (Handover.ToGroup) for the
// functions of this shard.
func (g *Gateway) GroupFromShard(from, tenant uint32, frame []byte) {
	defer g.survive(nil, g.mark(), frame)
	h, why := parseIP(frame[ethLen:])
	if why == none {
		n := g.routes.network(tenant)
		why = g.share(from, n, g.receivers.find(g, n), frame, &h)
	}
	if why != none {
		g.stats.drop(nil, why)
	}
}

// toGroup takes a multicast packet that a port's function sends.
func (g *Gateway) toGroup(p *Endpoint, frame []byte, h *header, f *Forward) Reason {
	if !p.up {
		return DropPortDown
	}
	g.follow(p)
	a, why := g.shareAll(p.Function, p.network, frame, h)
	if why != none {
		g.stats.drop(p, why) // the peers still get their copies
	}
	for _, to := range a.peers {
		if h.total > to.mtu {
			g.stats.drop(p, DropTooBig)
		}
	}
	f.start(frame[ethLen:], *h, Offload{}, g.routes.mtu, false)
	f.tunnels, f.tenant, f.peers = &g.Tunnels, p.Tenant, a.peers
	f.NextCopy()
	return none
}

// NextCopy moves on to the next peer that gets a copy of FromFunction's packet, and reports whether
// there is one: the path to it has to carry the packet. For a unicast packet there is none.
func (f *Forward) NextCopy() bool {
	for f.Tunnel = nil; len(f.peers) > 0 && f.Tunnel == nil; f.peers = f.peers[1:] {
		if to := f.peers[0]; f.h.total <= to.mtu {
			f.Tunnel = f.tunnels.To(to.id, f.tenant)
		}
	}
	f.at, f.index = 0, 0
	return f.Tunnel != nil
}

// groupFromTunnel takes a multicast packet that a peer's function sent.
func (g *Gateway) groupFromTunnel(from *Tunnel, frame []byte, h *header, outer uint8) Reason {
	n := g.routes.network(from.Tenant)
	if src, ok := n.find(h.src); !ok || src.Kind != ToPeer || src.Peer != from.Peer {
		return DropWrongSource
	}
	if !slices.ContainsFunc(g.Groups, func(c Claim) bool { return h.wholeTo(frame[ethLen:], &c) }) {
		return DropMulticast
	}
	ecn, ok := decapsulate(h.ecn(), outer)
	if !ok {
		return DropECN
	}
	h.setECN(frame[ethLen:], ecn)
	_, why := g.shareAll(from.flow(), n, frame, h)
	return why
}

package gateway

import (
	"net/netip"
	"slices"

	"github.com/falcon-vnic/vnic/internal/fair"
	"github.com/falcon-vnic/vnic/internal/pool"
	"github.com/falcon-vnic/vnic/internal/ring"
)

// Multicast is carried for RoCEv2 of the functions themselves alone, between all of a tenant's that
// speak it: each looks at its groups itself. A peer gets one copy, and so does each other shard; the
// gateway there shares it out.
//
//	function ─▶ FromFunction ─┬─▶ NextCopy: a tunnel to each peer of the tenant ─▶ FromTunnel ┐
//	                          ├─▶ each other shard ─▶ GroupFromShard ─────────────────────────┤
//	                          └─▶ functions of this shard, the sender too  ◀──────────────────┘
//
// One packet may have to be looked at by hundreds of functions, and written into the memory of
// hundreds of queue pairs of each. Each copy is charged to who sent the packet, a function or a peer:
// a Step makes a bounded number of copies (castBudget), and those who have more to be made share the
// next Steps by turns (package fair). What waits is copied once and bounded; a function of this shard
// has one packet there and sends no further datagrams meanwhile (Casting).
//
// What guests send to groups through their ports is not carried.

// Bounds of what packets to groups take.
const (
	castBudget = 64 // copies in a Step, and functions looked at
	castTurn   = 16 // of them for one sender, until the next has its turn
	maxCasts   = 64 // packets of one sender that wait
)

// audience is who hears the multicast of a tenant.
type audience struct {
	here   []*Endpoint // of this shard
	beyond []uint8     // other shards
	peers  []uint8
}

// audiences are those found in an epoch.
type audiences struct {
	epoch
	of map[uint32]*audience // by tenant
}

// hear finds who hears a tenant's multicast. What was found holds until anything changes.
func (as *audiences) hear(g *Gateway, n *network) *audience {
	if now := g.epoch(); as.of == nil || as.epoch != now {
		*as = audiences{now, map[uint32]*audience{}}
	}
	a := as.of[n.tenant]
	if a == nil {
		a = gather(n, g.ports, g.shard)
		as.of[n.tenant] = a
	}
	return a
}

func gather(n *network, ports []*Endpoint, shard uint8) *audience {
	a := &audience{peers: *n.peers.Load()}
	for _, p := range ports {
		if p.up && p.Tenant == n.tenant {
			a.here = append(a.here, p)
		}
	}
	n.addrs.Each(func(_ netip.Addr, to Target) {
		if to.Kind == ToPort && to.Shard != shard && !slices.Contains(a.beyond, to.Shard) {
			a.beyond = append(a.beyond, to.Shard)
		}
	})
	slices.Sort(a.beyond)
	return a
}

// casts are the packets to groups that functions of this shard are still to get.
type casts struct {
	round fair.Round[caster]
	of    map[uint32]*caster // by whom they are charged to
	free  pool.Pool[cast]
	left  int // of castBudget
}

// caster is who sent some.
type caster struct {
	flow    fair.Flow[caster]
	waiting ring.Queue[*cast]
}

// cast is one of them, and who has got it.
type cast struct {
	frame  []byte
	h      header
	tenant uint32
	to     []*Endpoint // who is to look at it still
	at     int         // queue pairs of the first of those that have it
}

func (cs *casts) init() {
	cs.of, cs.round.Quantum, cs.left = map[uint32]*caster{}, castTurn, castBudget
}

// copies has some more functions and queue pairs get the packet, at most so many. It returns how
// many that were.
func (c *cast) copies(most int) (n int) {
	for len(c.to) > 0 && n < most {
		p, more := c.to[0], false
		n++ // it is looked at
		if p.up && p.Tenant == c.tenant && p.wants(c.frame[ethLen:], &c.h) {
			var made int
			made, more = p.roce(c.frame[ethLen:ethLen+c.h.total], c.at, max(most-n, 1))
			n += max(made-1, 0)
			c.at += made
		}
		if !more {
			c.to, c.at = c.to[1:], 0
		}
	}
	return n
}

// Cast makes copies of packets to groups that wait, as many as a Step may. It is called once in each
// Step, before anything new comes.
func (g *Gateway) Cast() {
	cs := &g.casts
	cs.left = castBudget
	for cs.left > 0 && !cs.round.Empty() {
		w := cs.round.Next()
		c := *w.waiting.Pop() // it is lost if it finds a fault in this code
		g.castSome(w, c)
		if len(c.to) > 0 {
			*w.waiting.PushFront() = c
		} else {
			cs.free.Put(c)
		}
		cs.round.Settle(&w.flow, w.waiting.Len() > 0, false)
	}
}

// castSome gives a packet's sender a turn.
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

// Casting reports whether a packet to a group that a function sent, or a peer, or anybody if from is
// 0, waits for copies to be made.
func (g *Gateway) Casting(from uint32) bool {
	if from == 0 {
		return !g.casts.round.Empty()
	}
	w := g.casts.of[from]
	return w != nil && w.waiting.Len() > 0
}

// share gives a packet to a group to all functions of this shard: at once, as far as its sender and
// the Step allow.
func (g *Gateway) share(from uint32, n *network, a *audience, frame []byte, h *header) Reason {
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

// maxCast is longer than any packet of RoCEv2.
const maxCast = 4096 + 256

// shareAll gives a packet to a group to all functions of this NIC.
func (g *Gateway) shareAll(from uint32, n *network, frame []byte, h *header) (*audience, Reason) {
	a := g.audiences.hear(g, n)
	for _, to := range a.beyond {
		if g.Handover == nil || !g.Handover.ToGroup(to, from, n.tenant, frame) {
			g.stats.drop(nil, DropShardFull)
			continue
		}
		g.stats.HandedOver++
	}
	return a, g.share(from, n, a, frame, h)
}

// GroupFromShard takes a packet to a group that another shard has for the functions of this one,
// from Handover.ToGroup.
func (g *Gateway) GroupFromShard(from, tenant uint32, frame []byte) {
	defer g.survive(nil, g.mark(), frame)
	h, why := parseIP(frame[ethLen:])
	if why == none {
		n := g.routes.network(tenant)
		why = g.share(from, n, g.audiences.hear(g, n), frame, &h)
	}
	if why != none {
		g.stats.drop(nil, why)
	}
}

// toGroup takes a packet that a port's function sends to a group.
func (g *Gateway) toGroup(p *Endpoint, frame []byte, h *header, f *Forward) Reason {
	if !p.up {
		return DropPortDown
	}
	g.follow(p)
	a, why := g.shareAll(p.Function, p.network, frame, h)
	if why != none {
		g.stats.drop(p, why) // the peers' copies go all the same
	}
	if h.total > g.routes.mtu && len(a.peers) > 0 {
		return DropTooBig
	}
	f.start(frame[ethLen:], *h, Offload{}, g.routes.mtu, false)
	f.tunnels, f.tenant, f.peers = &g.Tunnels, p.Tenant, a.peers
	f.NextCopy()
	return none
}

// NextCopy turns to the next peer that a packet of FromFunction is for, and reports whether there
// is one. There never is for a packet to one station.
func (f *Forward) NextCopy() bool {
	for f.Tunnel = nil; len(f.peers) > 0 && f.Tunnel == nil; f.peers = f.peers[1:] {
		f.Tunnel = f.tunnels.To(f.peers[0], f.tenant)
	}
	f.at, f.index = 0, 0
	return f.Tunnel != nil
}

// groupFromTunnel takes a packet to a group that a peer's function sent.
func (g *Gateway) groupFromTunnel(from *Tunnel, frame []byte, h *header, outer uint8) Reason {
	n := g.routes.network(from.Tenant)
	if src, ok := n.find(h.src); !ok || src.Kind != ToPeer || src.Peer != from.Peer {
		return DropWrongSource
	}
	if !h.roce(frame[ethLen:]) {
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

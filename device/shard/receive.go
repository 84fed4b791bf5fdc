package shard

import (
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/handover"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/loglimit"
)

// receiver takes packets in, from the uplink and from other shards.
type receiver struct {
	uplink   *uplink
	falcon   *falconWire
	gw       *gateway.Gateway
	probes   *probes
	others   *others // nil: there are no other shards
	capture  *captures
	trace    *tracer
	guard    guard
	drops    *dropCounts
	counters *shardCounts
	opener   *security.Opener
	encap    security.Encap
	peers    map[cm.PeerID]*peer
	mode     string // psp.mode
	core     Core
	moves    bool // peers may move
}

// receiveAll takes frames of the uplink. segments holds the segment size of each, if there are
// superframes among them.
func (r *receiver) receiveAll(now falcon.Time, frames [][]byte, segments []int) {
	if len(frames) > 1 {
		for _, f := range frames {
			r.prefetch(f[min(r.uplink.underlay.Headroom(), len(f)):])
		}
	}
	for i, f := range frames {
		segment := 0
		if segments != nil {
			segment = segments[i]
		}
		r.receive(now, f, segment)
	}
}

// receive takes one frame of the uplink through to guest memory, or gives it to the shard that it
// is for. The frame is opened in place and not kept. A superframe is one datagram to the underlay;
// it holds several sealed packets, each of segment bytes except the last, under the same outer
// headers. segment is 0 for any other frame.
func (r *receiver) receive(now falcon.Time, frame []byte, segment int) {
	r.capture.received(now, frame, segment)
	frame = underlay.Untag(frame)
	if r.others == nil {
		r.receiveOwn(now, frame, segment)
		return
	}
	if to, one := r.others.shardFor(frame, segment); one {
		r.steer(now, to, frame, segment)
		return
	}
	for i := 0; ; i++ {
		part := r.others.part(frame, segment, i)
		if len(part) == 0 {
			return
		}
		to, _ := r.others.shardFor(part, 0)
		r.steer(now, to, part, 0)
	}
}

// steer takes a frame whose packets are all for one shard.
func (r *receiver) steer(now falcon.Time, to int, frame []byte, segment int) {
	if to == r.others.index {
		r.receiveOwn(now, frame, segment)
		return
	}
	r.counters.steered++
	r.others.forward(to, handover.Uplink, segment, frame)
}

// receiveOwn takes a frame that is for this shard.
func (r *receiver) receiveOwn(now falcon.Time, frame []byte, segment int) {
	r.trace.frame()
	d, verdict := r.input(now, frame)
	switch verdict {
	case underlay.Deliver:
	case underlay.ARP, underlay.ND, underlay.Claim:
		r.others.forwardNeighbour(frame)
		return
	default:
		return // counted by the underlay
	}
	if segment <= 0 {
		r.unseal(now, &d, d.Payload)
		return
	}
	for at := 0; at < len(d.Payload); at += segment {
		r.prefetch(d.Payload[at:])
	}
	sealed := d.Payload
	for ; len(sealed) > segment; sealed = sealed[segment:] {
		r.unseal(now, &d, sealed[:segment:segment])
		r.uplink.underlay.CountSegment()
	}
	r.unseal(now, &d, sealed)
}

// input runs the underlay's part of receiving a frame.
func (r *receiver) input(now falcon.Time, frame []byte) (d underlay.Datagram, v underlay.Verdict) {
	defer r.guard.survive(now, "a frame of the uplink", frame)
	v = underlay.DropRunt // the result if Input panics
	return r.uplink.underlay.Input(now, frame)
}

// prefetch makes the processor fetch the connection of a sealed packet, whose CID is in clear text,
// while the packets before it are opened. For anything else the CID read is not that of a
// connection.
func (r *receiver) prefetch(sealed []byte) {
	if cid, ok := r.encap.PeekCID(sealed); ok {
		r.falcon.engine.Prefetch(cid)
	}
}

// unseal opens one sealed packet, which came in d, and passes its content on.
func (r *receiver) unseal(now falcon.Time, d *underlay.Datagram, sealed []byte) {
	o, ok := r.open(now, sealed)
	switch {
	case !ok:
	case o.Use.Class == cm.ClassFalcon:
		r.receiveFalcon(now, d, o)
	default:
		r.receivePlain(now, d, o)
	}
}

// open opens a packet.
func (r *receiver) open(now falcon.Time, sealed []byte) (o *security.Opened, ok bool) {
	defer r.guard.survive(now, "a sealed packet", sealed)
	o, why := r.opener.Open(sealed)
	if why == security.OtherMode {
		r.peers[o.Use.Peer].sealsOtherwise(now, r.guard.log, r.mode)
	}
	if why != security.None {
		r.drops.countRefusal(why)
	}
	return o, why == security.None
}

// receiveFalcon passes an opened packet of the Falcon class to its connection.
func (r *receiver) receiveFalcon(now falcon.Time, d *underlay.Datagram, o *security.Opened) {
	p := &o.Packet
	c := r.falcon.table.FindSealed(p.CID)
	own := c != nil && r.addressed(c, d, p)
	r.capture.opened(now, c, own, p)
	switch {
	case c == nil:
		r.drops.count(dropUnknownCID)
	case !own:
		r.drops.count(dropWrongAddress)
	default:
		r.receiveFor(now, d, o, c, p.Falcon)
	}
}

// addressed reports whether a packet came from the connection's peer and is for us: by the
// addresses of the functions or, in transport mode, of the NICs. For a peer that may move, its
// key alone says that.
func (r *receiver) addressed(c *conn.Slot, d *underlay.Datagram, p *security.Packet) bool {
	if p.Whole == nil {
		return r.moves || d.Src == c.Underlay.Addr()
	}
	return p.Inner.Src == c.Inner.Dst && p.Inner.Dst == c.Inner.Src
}

// receiveFor passes the Falcon packet of a connection to the transport, if its session accepts it.
func (r *receiver) receiveFor(now falcon.Time, d *underlay.Datagram, o *security.Opened, c *conn.Slot, packet []byte) {
	session := sessionOf(c)
	newest, why := session.Check(o)
	if why == security.WrongSPI {
		r.core.SPIRefused(session.Use())
	}
	if why != security.None {
		r.drops.countRefusal(why)
		return
	}
	if newest {
		r.heardFrom(now, d, c.Peer, c.Underlay)
	}
	if !c.Owner.LinkUp {
		r.drops.count(dropLinkDown)
		return
	}
	if c.Owner.Trace != nil {
		noteReceived(r.trace.arrived, c, packet)
	}
	drop := r.falcon.engine.Receive(now, falcon.Packet{
		T1:   o.T1(),
		Hops: hops(d.TTL),
		CE:   d.CE,
		Data: packet,
	})
	if drop != 0 {
		r.drops.count(dropFalcon)
		return
	}
	r.counters.rxPackets++
	r.counters.rxBytes += uint64(len(packet))
	r.falcon.passEvents(now) // before the frame's buffer is reused
}

// hops returns the 4-bit hop count of Falcon §7.7.1. A peer of another make may start with 64 or
// 128.
func hops(ttl uint8) uint8 {
	initial := uint8(sealedTTL)
	switch {
	case ttl <= 64:
		initial = 64
	case ttl <= 128:
		initial = 128
	}
	return min(initial-ttl, 15)
}

// receivePlain passes an opened packet of the gateway class to the port it is for.
func (r *receiver) receivePlain(now falcon.Time, d *underlay.Datagram, o *security.Opened) {
	if from, ok := r.probes.take(now, o); ok {
		if from != nil {
			r.heardFrom(now, d, from.id, from.underlay)
		}
		return
	}
	if r.gw.Routes().NoPorts() {
		r.drops.count(dropNoGateway)
		return
	}
	t, packet := r.gw.Tunnels.Opened(o)
	if t == nil {
		return
	}
	r.heardFrom(now, d, t.Peer, t.Underlay)
	r.capture.plain(r.gw, captureIn, now, t, packet)
	r.gw.FromTunnel(t, o.WithRoom(gateway.EthernetLen), d.ECN)
}

// A Step takes as many frames of other shards as it reads from its own uplink, and about as many
// bytes as it reads from ports: a flood from another shard takes no more than half of this one's
// time.
const (
	handedQuantum = thread.Batch
	handedBytes   = 240_000
)

// takeHanded takes the frames that other shards handed over, and reports whether there were any.
func (r *receiver) takeHanded(now falcon.Time) (some bool) {
	o := r.others
	if o == nil {
		return false
	}
	o.begin()
	f := &o.frame
	for n, bytes := 0, 0; n < handedQuantum && bytes < handedBytes; n++ {
		from, ok := o.rings.Take(f)
		if !ok {
			break
		}
		some = true
		bytes += len(f.Data)
		switch f.Kind {
		case handover.Uplink:
			r.receiveOwn(now, f.Data, int(f.A))
		case handover.Neighbour:
			r.overhear(now, f.Data)
		case handover.Local:
			r.receiveLocal(now, from, f)
		case handover.Plain:
			r.gw.FromShard(f.A, f.Data, offloadOf(f.Aux[:]))
			o.lent = true
		case handover.Group:
			r.gw.GroupFromShard(f.Flow, f.A, f.Data)
		}
	}
	o.end()
	return some
}

func (r *receiver) overhear(now falcon.Time, frame []byte) {
	defer r.guard.survive(now, "a frame of the uplink", frame)
	r.uplink.underlay.Overhear(now, frame)
}

// receiveLocal takes a packet of a connection between functions of two shards.
func (r *receiver) receiveLocal(now falcon.Time, from int, f *handover.Frame) {
	c := r.falcon.table.FindLocal(f.A)
	switch cid, ok := wire.PeekCID(f.Data); {
	case c == nil || !ok || cid != f.A || conn.ShardOf(c.Conn.RemoteCID()) != from:
		r.drops.count(dropUnknownCID)
		return
	case !c.Owner.LinkUp:
		r.drops.count(dropLinkDown)
		return
	}
	if c.Owner.Trace != nil {
		noteReceived(r.trace.clock(), c, f.Data)
	}
	if r.falcon.engine.Receive(now, falcon.Packet{T1: f.B, Data: f.Data}) != 0 {
		r.drops.count(dropFalcon)
		return
	}
	r.falcon.passEvents(now) // before the room in the ring is reused
}

// guard protects the parsing of untrusted input.
type guard struct {
	drops *dropCounts
	log   *loglimit.Log
}

// survive is deferred around the parsing of one frame or message. If that panics, survive counts
// and logs it, and the NIC goes on: nobody can end it with what they send. Only code that keeps no
// state between frames may run under it; an engine that failed halfway could not be trusted.
func (g *guard) survive(now falcon.Time, what string, frame []byte) {
	if v := recover(); v != nil {
		g.drops.count(dropPanic)
		g.log.Panicked(now, what, v, frame)
	}
}

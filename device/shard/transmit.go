package shard

import (
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/tape"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// sender sends packets: it fills the tx queue.
type sender struct {
	uplink   *uplink
	falcon   *falconWire
	plain    *plainOut
	networks *networks
	probes   *probes
	others   *others // nil: there are no other shards
	capture  *captures
	drops    *dropCounts
	counters *shardCounts
	host     *credit.Node

	portsFirst bool // the ports filled the tx queue before the transport this time
}

// srcPort returns the outer UDP source port, which spreads connections over paths (docs/wire.md).
// Ports of connections with different shards of the peer differ, so that no superframe is for two
// shards.
func srcPort(c *conn.Slot) uint16 {
	return firstPort + uint16(conn.ShardOf(c.Conn.RemoteCID())*paths) + uint16(c.Path()%paths)
}

// outerClass returns the outer TOS or traffic class: the DSCP of the inner header (RFC 2983 §3.1,
// uniform), and ECT(0), since Falcon handles congestion marks itself (RFC 6040 §4.1).
func outerClass(c *conn.Slot) uint8 { return c.Inner.Class&^3 | underlay.ECT0 }

// transmit fills the tx queue: first with frames of the underlay, then with packets of the
// transport and of the ports, which take turns at being first, as far as the queue and the quantum
// of each allow. It reports whether more could be sent at once.
func (s *sender) transmit(now falcon.Time) bool {
	if !s.uplink.sendOwn(now) {
		return false
	}
	burst, bursts, plain, more := txBurst, txBursts, txPlain, false
	if s.host.Reserved(credit.ReqPktTx) {
		burst, bursts, plain = txShort, 1, txShort
	}
	s.portsFirst = !s.portsFirst
	if s.portsFirst {
		more = s.plain.transmit(now, plain)
	}
	more = s.transmitFalcon(now, burst, bursts) || more
	more = s.networks.transmit(now, s.plain, burst) || more
	if !s.portsFirst {
		more = s.plain.transmit(now, plain) || more
	}
	return more
}

// transmitFalcon sends packets of the transport in bursts, each as long as another packet like the
// last fits: one more than a superframe holds would need a system call of its own. It does not begin
// a burst that the quantum would cut short.
func (s *sender) transmitFalcon(now falcon.Time, burst, bursts int) bool {
	for made, bytes, last := 0, 0, 0; made < txQuantum; made++ {
		if bytes+last > burst {
			if bursts--; bursts == 0 || made > txQuantum/2 {
				break
			}
			bytes = 0
		}
		b := s.uplink.tx.Slot()
		if b == nil {
			return false
		}
		n, from := s.falcon.engine.Transmit(now, b[falconAt:len(b)-security.Trailer])
		if n == 0 {
			return false
		}
		s.seal(now, b, n, from)
		last = n + security.MaxHeadroom + security.Trailer
		bytes += last
		if s.falcon.engine.Urgent() {
			break
		}
	}
	return true
}

// seal seals the Falcon packet of n bytes in b and queues the frame.
func (s *sender) seal(now falcon.Time, b []byte, n int, from *falcon.Conn) {
	c := s.falcon.table.Of(from)
	if c == nil {
		s.drops.count(dropTxClosed)
		return
	}
	if !c.Owner.LinkUp {
		s.drops.count(dropLinkDown)
		noteUnsealed(c)
		return
	}
	var acks trace.Event
	if c.Owner.Trace != nil {
		acks = acknowledges(c, b[falconAt:falconAt+n])
	}
	if c.Keys == nil {
		s.sendLocal(now, c, b[falconAt:falconAt+n])
		if c.Owner.Trace != nil {
			noteSealed(c, &acks)
		}
		return
	}
	at, sealed, err := s.wrap(now, c, b, n)
	if err != nil {
		s.drops.count(dropTxSeal)
		noteUnsealed(c)
		return
	}
	if c.Owner.Trace != nil {
		noteSealed(c, &acks)
	}
	s.counters.txPackets++
	s.counters.txBytes += uint64(n)
	s.probes.used(now, c.Peer, sealed)
	s.uplink.send(now, outer{c.Underlay, srcPort(c), outerClass(c)}, b, at, sealed)
}

// wrap puts the headers of a connection around the Falcon packet of n bytes at b[falconAt:] and
// seals it. It returns where the frame begins in b and how many bytes the underlay has to carry.
//
//	Ethernet | IP | UDP | PSP … Falcon … ICV    see security.Encap
func (s *sender) wrap(now falcon.Time, c *conn.Slot, b []byte, n int) (at, sealed int, err error) {
	session := sessionOf(c)
	inner := session.Wrap(&c.Inner, b, falconAt, n)
	s.capture.falcon(captureOut, now, c, inner, b[falconAt:falconAt+n])
	if t := s.uplink.tape; t.Active() {
		t.OutPart(tape.Frames, inner, len(inner)-n+falconHead(b[falconAt:falconAt+n]), 0)
	}
	start, sealed, err := session.Seal(now, b, falconAt, n)
	return start - s.uplink.underlay.Headroom(), sealed, err
}

// sendLocal sends a Falcon packet to the shard at the other end of the connection.
func (s *sender) sendLocal(now falcon.Time, c *conn.Slot, packet []byte) {
	if s.capture.wantClear {
		whole := append(c.Inner.Append(nil, len(packet)), packet...)
		s.capture.local(now, c, whole, wire.Payload(packet))
	}
	if s.others.forwardLocal(now, c.Owner.ID, c.Conn.RemoteCID(), packet) {
		s.counters.localPackets++
		s.counters.localBytes += uint64(len(packet))
	}
}

// plainOut sends plain IP to peers: it seals and queues the gateway's packets.
type plainOut struct {
	uplink  *uplink
	gw      *gateway.Gateway
	probes  *probes
	capture *captures
	guard   guard
	drops   *dropCounts
}

// leastPlain is the least number of bytes that a packet counts for in a burst.
const leastPlain = 512

// transmit seals packets from the ports, as far as the tx queue has room and burst (bytes) allows;
// the rest stays in the gateway. It reports whether more could be sent at once.
func (o *plainOut) transmit(now falcon.Time, burst int) (more bool) {
	for bytes := 0; bytes < burst; {
		f := o.gw.Outgoing(now)
		if f == nil {
			return false
		}
		b := o.uplink.tx.Slot()
		if b == nil {
			return false
		}
		packet := o.next(now, f)
		if packet == nil {
			o.gw.EndFrame()
			continue
		}
		o.seal(now, b, f, packet)
		bytes += max(len(packet), leastPlain)
	}
	return o.gw.Busy()
}

// next cuts the next packet from the current frame.
func (o *plainOut) next(now falcon.Time, f *gateway.Forward) []byte {
	defer o.guard.survive(now, "a frame of a port", f.Packet)
	return f.Next()
}

// seal seals one packet of a port and queues the frame.
func (o *plainOut) seal(now falcon.Time, b []byte, f *gateway.Forward, packet []byte) {
	if !o.gw.Tunnels.HasKey(f.Tunnel) {
		return
	}
	o.capture.plain(o.gw, captureOut, now, f.Tunnel, packet)
	if t := o.uplink.tape; t.Active() {
		n, checksumAt := ipHead(packet, len(packet))
		t.OutPart(tape.Frames, packet, n, checksumAt)
	}
	sealed, err := o.gw.Tunnels.Seal(now, f.Tunnel, b[o.uplink.underlay.Headroom():], packet)
	if err != nil {
		o.drops.count(dropTxSeal)
		return
	}
	o.probes.used(now, f.Tunnel.Peer, sealed)
	if o.uplink.send(now, outer{f.Tunnel.Underlay, firstPort + uint16(f.Flow%paths), f.Class}, b, 0, sealed) {
		o.uplink.tx.MayWait = true
	}
}

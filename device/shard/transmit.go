package shard

import (
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// sender sends packets: it fills the tx queue.
type sender struct {
	*uplink
	*falconWire
	drops    *dropCounts
	counters *shardCounts
	others   *others
	host     *credit.Node

	plain      plainOut
	roce       *roceWire
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
	if !s.speak(now) {
		return false
	}
	burst, plain, more := txBurst, txPlain, false
	if s.host.Reserved(credit.ReqPktTx) {
		burst, plain = txShort, txShort
	}
	s.portsFirst = !s.portsFirst
	if s.portsFirst {
		more = s.plain.transmit(now, plain)
	}
	more = s.transmitFalcon(now, burst) || more
	more = s.roce.transmit(now, &s.plain) || more
	if !s.portsFirst {
		more = s.plain.transmit(now, plain) || more
	}
	return more
}

func (s *sender) transmitFalcon(now falcon.Time, burst int) bool {
	for made, bytes := 0, 0; made < txQuantum && bytes < burst; made++ {
		b := s.tx.Slot()
		if b == nil {
			return false
		}
		n, from := s.falcon.Transmit(now, b[falconAt:len(b)-security.Trailer])
		if n == 0 {
			return false
		}
		s.seal(now, b, n, from)
		bytes += n
		if s.falcon.Urgent() {
			break
		}
	}
	return true
}

// seal seals the Falcon packet of n bytes in b and queues the frame.
func (s *sender) seal(now falcon.Time, b []byte, n int, from *falcon.Conn) {
	c := s.table.Of(from)
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
		s.sendInside(now, c, b[falconAt:falconAt+n])
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
	s.send(now, outer{c.Underlay, srcPort(c), outerClass(c)}, b, at, sealed)
}

// wrap puts the headers of a connection around the Falcon packet of n bytes at b[falconAt:] and
// seals it. It returns where the frame begins in b and how many bytes the underlay has to carry.
//
//	Ethernet | IP | UDP | PSP … Falcon … ICV    see security.Encap
func (s *sender) wrap(now falcon.Time, c *conn.Slot, b []byte, n int) (at, sealed int, err error) {
	session := sessionOf(c)
	inner := session.Wrap(&c.Inner, b, falconAt, n)
	s.capture.falcon(captureOut, now, c, inner, b[falconAt:falconAt+n])
	start, sealed, err := session.Seal(now, b, falconAt, n)
	return start - s.underlay.Headroom(), sealed, err
}

// sendInside sends a Falcon packet to the shard at the other end of the connection.
func (s *sender) sendInside(now falcon.Time, c *conn.Slot, packet []byte) {
	if s.capture.wantClear {
		whole := append(c.Inner.Append(nil, len(packet)), packet...)
		s.capture.inside(now, c, whole, ulpPacket(packet))
	}
	if s.others.carry(now, c.Owner.ID, c.Conn.RemoteCID(), packet) {
		s.counters.insidePackets++
		s.counters.insideBytes += uint64(len(packet))
	}
}

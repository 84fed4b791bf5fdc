package shard

import (
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// falconAt is where the Falcon packet begins in a buffer: behind the longest
// headers. The transport fills it before it is known whose packet it is; a
// frame with shorter ones begins later in the buffer.
const falconAt = underlay.HeadroomIPv6 + security.MaxHeadroom

// firstPort begins the range of outer UDP source ports; the path is added
// (docs/wire.md).
const (
	firstPort = 0xC000
	paths     = 8
)

// srcPort is the outer UDP source port: it spreads connections over paths (docs/wire.md).
// Ports of connections with different shards of the peer differ, so that no superframe is for two.
func srcPort(c *conn.Slot) uint16 {
	return firstPort + uint16(conn.ShardOf(c.Conn.RemoteCID())*paths) + uint16(c.Path()%paths)
}

// outerClass is the outer TOS or traffic class: the DSCP of the inner header (RFC 2983 §3.1,
// uniform), and ECT(0), since Falcon takes marks for itself (RFC 6040 §4.1).
func outerClass(c *conn.Slot) uint8 { return c.Inner.Class&^3 | underlay.ECT0 }

// transmit fills the tx queue: first what the underlay has to say, then
// packets of the transport and of the ports, in turns first, as far as the queue
// and the quantum allow. It reports whether more could be sent at once.
func (s *Shard) transmit(now falcon.Time) bool {
	for {
		b := s.tx.Slot()
		if b == nil {
			return false
		}
		n := s.underlay.Next(b)
		if n == 0 {
			break
		}
		s.capture.sealed(captureOut, now, b[:n])
		s.tx.Commit(n)
	}
	s.plain.first = !s.plain.first
	if s.plain.first {
		s.transmitPlain(now)
	}
	more := s.transmitFalcon(now)
	more = s.transmitRoCE(now) || more
	if !s.plain.first {
		s.transmitPlain(now)
	}
	return more
}

func (s *Shard) transmitFalcon(now falcon.Time) bool {
	burst := txBurst
	if s.funcs.host.Reserved(credit.ReqPktTx) {
		burst = txShort
	}
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

// seal wraps the Falcon packet of n bytes in b and queues the frame.
func (s *Shard) seal(now falcon.Time, b []byte, n int, from *falcon.Conn) {
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
		s.sendInside(now, c, b, n)
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
	total, ok := s.underlay.OutputClass(now, c.Underlay, srcPort(c), outerClass(c), b[at:], sealed)
	if !ok {
		return // kept by the underlay until the neighbour answers, or counted there
	}
	s.capture.sealed(captureOut, now, b[at:at+total])
	s.tx.CommitAt(at, total)
}

// wrap puts the headers of a connection around the Falcon packet of n bytes at
// b[falconAt:] and seals it. It returns where the frame begins in b and how many
// bytes the underlay is to carry.
//
//	Ethernet | IP | UDP | PSP … Falcon … ICV    see security.Encap
func (s *Shard) wrap(now falcon.Time, c *conn.Slot, b []byte, n int) (at, sealed int, err error) {
	session := sessionOf(c)
	inner := session.Wrap(&c.Inner, b, falconAt, n)
	s.capture.falcon(captureOut, now, c, inner, b[falconAt:falconAt+n])
	start, sealed, err := session.Seal(now, b, falconAt, n)
	return start - s.underlay.Headroom(), sealed, err
}

// transmitPlain seals what came from the ports, as far as the tx queue has room; the rest waits
// where it is.
func (s *Shard) transmitPlain(now falcon.Time) {
	for {
		f := s.plain.gw.Outgoing(now)
		if f == nil {
			return
		}
		b := s.tx.Slot()
		if b == nil {
			return
		}
		packet := s.nextPlain(now, f)
		if packet == nil {
			s.plain.gw.EndFrame()
			continue
		}
		s.sealPlain(now, b, f, packet)
	}
}

// nextPlain cuts the next packet from the frame at hand.
func (s *Shard) nextPlain(now falcon.Time, f *gateway.Forward) []byte {
	defer s.survive(now, "a frame of a port", f.Packet)
	return f.Next()
}

// sealPlain seals one packet of a port and queues the frame.
func (s *Shard) sealPlain(now falcon.Time, b []byte, f *gateway.Forward, packet []byte) {
	if !s.plain.gw.HasKey(f.Tunnel) {
		return
	}
	s.capture.plain(s.plain.gw, captureOut, now, f.Tunnel, packet)
	sealed, err := s.plain.gw.Seal(now, f.Tunnel, b[s.underlay.Headroom():], packet)
	if err != nil {
		s.drops.count(dropTxSeal)
		return
	}
	total, ok := s.underlay.OutputClass(now, f.Tunnel.Underlay, firstPort+uint16(f.Flow%paths), f.ECN, b, sealed)
	if !ok {
		return // kept by the underlay until the neighbour answers, or counted there
	}
	s.capture.sealed(captureOut, now, b[:total])
	s.tx.Commit(total)
	s.tx.Patient = true
}

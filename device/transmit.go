package device

import (
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/psp"
)

// falconAt is where the Falcon packet begins in a frame.
const falconAt = underlay.Headroom + pspHeader + underlay.InnerLen

// firstPort begins the range of outer UDP source ports; the path is added
// (docs/wire.md).
const (
	firstPort = 0xC000
	paths     = 8
)

// transmit fills the tx queue: first what the underlay has to say, then
// packets of the transport, as far as the queue and the quantum allow. It
// reports whether more could be sent at once.
func (s *Shard) transmit(now falcon.Time) bool {
	for {
		b := s.tx.slot()
		if b == nil {
			return false
		}
		n := s.underlay.Next(b)
		if n == 0 {
			break
		}
		s.capture.sealed(captureOut, now, b[:n])
		s.tx.commit(n)
	}
	for made, bytes := 0, 0; made < txQuantum && bytes < txBurst; made++ {
		b := s.tx.slot()
		if b == nil {
			return false
		}
		n, conn := s.falcon.Transmit(now, b[falconAt:len(b)-psp.ICVLen])
		if n == 0 {
			return false
		}
		s.seal(now, b, n, conn)
		bytes += n
	}
	return true
}

// seal wraps the Falcon packet of n bytes in b and queues the frame:
//
//	Ethernet | IPv4 | UDP | PSP, cookie | IPv4 | Falcon … | ICV
func (s *Shard) seal(now falcon.Time, b []byte, n int, conn *falcon.Conn) {
	c := s.slots.open(conn.Config().LocalCID)
	if c == nil || c.conn != conn {
		s.drops.count(dropTxClosed)
		return
	}
	pspAt := b[underlay.Headroom:]
	inner := pspAt[pspHeader:]
	c.inner.Append(inner[:0], n)
	s.capture.clear(captureOut, now, inner[:underlay.InnerLen+n])
	sealed, err := c.tx.Seal(now, psp.NextHeaderIPv4, pspAt, underlay.InnerLen+n)
	if err != nil {
		s.drops.count(dropTxSeal)
		return
	}
	s.askForKey(c.tx)
	s.counters.txPackets++
	s.counters.txBytes += uint64(n)
	total, ok := s.underlay.Output(now, c.peer.underlay, c.srcPort(), true, b, sealed)
	if !ok {
		return // kept by the underlay until the neighbour answers, or counted there
	}
	s.capture.sealed(captureOut, now, b[:total])
	s.tx.commit(total)
}

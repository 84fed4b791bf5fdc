package device

import (
	"errors"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// sealedTTL is what sealed packets leave with, so that a receiver can count
// the hops (docs/wire.md).
const sealedTTL = 255

// receive takes one frame of the uplink through to guest memory. The frame is
// opened in place and not kept.
func (s *Shard) receive(now falcon.Time, frame []byte) {
	s.capture.sealed(captureIn, now, frame)
	d, verdict := s.underlay.Input(now, frame)
	if verdict != underlay.Deliver {
		return // ARP, or counted by the underlay
	}
	hdr, _, clear, err := s.rxSAs.db.Open(d.Payload)
	if err != nil {
		s.drops.count(openDrop(err))
		return
	}
	inner, packet, err := underlay.ParseInner(clear)
	if err != nil || hdr.NextHeader != psp.NextHeaderIPv4 {
		s.drops.count(dropNotFalcon)
		return
	}
	s.capture.clear(captureIn, now, clear)
	cid, ok := wire.PeekCID(packet)
	if !ok {
		s.drops.count(dropNotFalcon)
		return
	}
	c := s.slots.open(cid)
	if c == nil {
		s.drops.count(dropUnknownCID)
		return
	}
	if inner.Src != c.inner.Dst || inner.Dst != c.inner.Src {
		s.drops.count(dropWrongAddress)
		return
	}
	if err := c.guard.Check(&hdr, s.rxSAs.db.Generation()); err != nil {
		s.drops.count(guardDrop(err))
		return
	}
	drop := s.falcon.Receive(now, falcon.Packet{
		T1:   uint32(hdr.IV >> 17),
		Hops: hops(d.TTL),
		CE:   d.CE,
		Data: packet,
	})
	if drop != 0 {
		s.drops.count(dropFalcon)
		return
	}
	s.counters.rxPackets++
	s.counters.rxBytes += uint64(len(packet))
	s.drainFalcon(now) // before the frame's buffer is used again
}

// hops is the 4-bit hop count of Falcon §7.7.1.
func hops(ttl uint8) uint8 { return min(sealedTTL-ttl, 15) }

func openDrop(err error) dropReason {
	switch {
	case errors.Is(err, psp.ErrUnknownSPI), errors.Is(err, psp.ErrVersion):
		return dropPSPSPI
	case errors.Is(err, psp.ErrAuth):
		return dropPSPAuth
	}
	return dropPSPMalformed
}

func guardDrop(err error) dropReason {
	switch {
	case errors.Is(err, psp.ErrReplay):
		return dropReplay
	case errors.Is(err, psp.ErrPCID):
		return dropConnectionPCID
	}
	return dropConnectionSPI
}

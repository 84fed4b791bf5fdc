package device

import (
	"errors"
	"log/slog"

	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// sealedTTL is what sealed packets leave with, so that a receiver can count
// the hops (docs/wire.md).
const sealedTTL = 255

// receive takes one frame of the uplink through to guest memory. The frame is
// opened in place and not kept. A superframe is to the underlay one datagram;
// it holds one sealed packet after the other, of segment bytes each but the
// last, under the same outer headers. segment is 0 for a frame that is none.
func (s *Shard) receive(now falcon.Time, frame []byte, segment int) {
	if len(s.traces) > 0 {
		s.arrived = s.clock()
	}
	s.capture.received(now, frame, segment)
	d, verdict := s.input(now, frame)
	if verdict != underlay.Deliver {
		return // ARP, or counted by the underlay
	}
	if segment <= 0 {
		s.unseal(now, &d, d.Payload)
		return
	}
	for at := 0; at < len(d.Payload); at += segment {
		s.prefetch(d.Payload[at:])
	}
	sealed := d.Payload
	for ; len(sealed) > segment; sealed = sealed[segment:] {
		s.unseal(now, &d, sealed[:segment:segment])
		s.underlay.Stats()[underlay.Deliver]++ // as if it had come alone
	}
	s.unseal(now, &d, sealed)
}

// input is the underlay's part of receiving a frame.
func (s *Shard) input(now falcon.Time, frame []byte) (d underlay.Datagram, v underlay.Verdict) {
	defer s.survive(now, "a frame of the uplink", frame)
	v = underlay.DropRunt // if it is not to be understood
	return s.underlay.Input(now, frame)
}

// prefetch has the processor fetch the connection of a sealed packet, which is
// in clear text, while the packets before it are opened. Whatever else comes
// is not known as a connection.
func (s *Shard) prefetch(sealed []byte) {
	at := pspHeader + underlay.InnerLen
	switch {
	case s.txSAs.direct:
		at = psp.BaseLen
	case len(sealed) > 0 && sealed[0] == psp.NextHeaderIPv6:
		at = pspHeader + underlay.InnerLen6
	}
	if cid, ok := wire.PeekCID(sealed[min(at, len(sealed)):]); ok {
		s.falcon.Prefetch(cid)
	}
}

// unseal opens one PSP packet, which came in d, and hands on what is in it.
func (s *Shard) unseal(now falcon.Time, d *underlay.Datagram, sealed []byte) {
	hdr, clear, ok := s.openSealed(now, sealed)
	if !ok {
		return
	}
	if hdr.Class != psp.ClassFalcon { // whatever is inside: the class decides
		s.receivePlain(now, d, &hdr, sealed)
		return
	}
	if hdr.HasVC == s.txSAs.direct {
		s.otherMode(now, &hdr)
		return
	}
	if s.txSAs.direct {
		s.receiveTransport(now, d, &hdr, clear)
		return
	}
	inner, packet, cid, ok := s.parseInner(now, &hdr, clear)
	if !ok {
		return
	}
	c := s.table.FindSealed(cid)
	s.captureFalcon(captureIn, now, c, clear, packet)
	if c == nil {
		s.drops.count(dropUnknownCID)
		return
	}
	if inner.Src != c.Inner.Dst || inner.Dst != c.Inner.Src {
		s.drops.count(dropWrongAddress)
		return
	}
	s.receiveFalcon(now, d, &hdr, c, packet)
}

// otherModeEvery is the least time between two lines of the log about one peer, and how long vnic
// show nic says it after the last packet.
const otherModeEvery = 60_000_000_000

// otherMode drops a packet of a peer, which is proved by its key, in the psp.mode that is not ours.
func (s *Shard) otherMode(now falcon.Time, hdr *psp.Header) {
	s.drops.count(dropNotFalcon)
	p := s.peers[cm.HostID(hdr.Owner>>32)]
	if p == nil {
		return
	}
	if p.otherMode == 0 || now-p.otherModeTold >= otherModeEvery {
		p.otherModeTold = now
		s.log.line(now, slog.LevelWarn, "a peer seals in another psp.mode: set it to the same on all NICs", "peer", p.host, "ours", s.cfg.PSP.Mode)
	}
	p.otherMode = now
}

// openSealed opens a PSP packet.
func (s *Shard) openSealed(now falcon.Time, sealed []byte) (hdr psp.Header, clear []byte, ok bool) {
	defer s.survive(now, "a sealed packet", sealed)
	hdr, _, clear, err := s.rxSAs.db.Open(sealed)
	if err != nil {
		s.drops.count(openDrop(err))
	}
	return hdr, clear, err == nil
}

// parseInner reads the inner headers of an opened packet, up to the connection it is for.
func (s *Shard) parseInner(now falcon.Time, hdr *psp.Header, clear []byte) (inner underlay.Inner, packet []byte, cid uint32, ok bool) {
	defer s.survive(now, "an opened packet", clear)
	inner, packet, err := underlay.ParseInner(clear)
	if err == nil && hdr.NextHeader == nextHeader(inner) {
		cid, ok = wire.PeekCID(packet)
	}
	if !ok {
		s.drops.count(dropNotFalcon)
	}
	return inner, packet, cid, ok
}

// receiveTransport takes an opened packet of transport mode: Falcon directly. The
// key is its peer's for one tenant, and the connection's guard knows which.
func (s *Shard) receiveTransport(now falcon.Time, d *underlay.Datagram, hdr *psp.Header, packet []byte) {
	cid, ok := wire.PeekCID(packet)
	if !ok || hdr.NextHeader != psp.NextHeaderFalcon {
		s.drops.count(dropNotFalcon)
		return
	}
	c := s.table.FindSealed(cid)
	switch {
	case c == nil:
		s.drops.count(dropUnknownCID)
		return
	case d.Src != c.Underlay:
		s.drops.count(dropWrongAddress)
		return
	}
	s.captureBare(captureIn, now, c, underlay.Inner{Src: c.Inner.Dst, Dst: c.Inner.Src}, packet)
	s.receiveFalcon(now, d, hdr, c, packet)
}

// receiveFalcon hands the Falcon packet of a connection to the transport.
func (s *Shard) receiveFalcon(now falcon.Time, d *underlay.Datagram, hdr *psp.Header, c *conn.Slot, packet []byte) {
	k := keysOf(c)
	fresh := int64(hdr.IV-k.guard.RemoteTime()) > 0 // the margin lets packets pass twice
	if err := k.guard.Check(hdr, s.rxSAs.db.Generation()); err != nil {
		s.drops.count(guardDrop(err))
		if sa := s.rxSAs.current[k.tx.key]; sa != nil && errors.Is(err, psp.ErrSPI) {
			_ = s.cm.SPIRefused(now, k.tx.key.peer, k.tx.key.tenant, k.tx.key.class, sa.sa) // a peer that is gone needs no key
		}
		return
	}
	if fresh && d.Src == c.Underlay {
		s.underlay.Authenticated(now, d)
	}
	if !c.Owner.LinkUp {
		s.drops.count(dropLinkDown)
		return
	}
	if c.Owner.Trace != nil {
		s.noteReceived(c, packet)
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

// nextHeader is what PSP calls the inner packet's kind.
func nextHeader(in underlay.Inner) uint8 {
	if in.Src.Is4() {
		return psp.NextHeaderIPv4
	}
	return psp.NextHeaderIPv6
}

// hops is the 4-bit hop count of Falcon §7.7.1. A peer of another make may begin with 64 or 128.
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

func openDrop(err error) dropReason {
	switch {
	case errors.Is(err, psp.ErrUnknownSPI), errors.Is(err, psp.ErrVersion):
		return dropPSPSPI
	case errors.Is(err, psp.ErrAuth):
		return dropPSPAuth
	case errors.Is(err, psp.ErrReplay):
		return dropReplay
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

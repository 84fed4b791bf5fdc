package shard

import (
	"log/slog"

	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/loglimit"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// sealedTTL is what sealed packets leave with, so that a receiver can count
// the hops (docs/wire.md).
const sealedTTL = 255

// receive takes one frame of the uplink through to guest memory. The frame is
// opened in place and not kept. A superframe is to the underlay one datagram;
// it holds one sealed packet after the other, of segment bytes each but the
// last, under the same outer headers. segment is 0 for a frame that is none.
func (s *Shard) receive(now falcon.Time, frame []byte, segment int) {
	s.capture.received(now, frame, segment)
	if s.others == nil || !s.steer(now, frame, segment) {
		s.receiveOwn(now, frame, segment)
	}
}

// receiveOwn takes a frame that is for this shard.
func (s *Shard) receiveOwn(now falcon.Time, frame []byte, segment int) {
	if len(s.traces) > 0 {
		s.arrived = s.clock()
	}
	d, verdict := s.input(now, frame)
	switch verdict {
	case underlay.Deliver:
	case underlay.ARP, underlay.ND, underlay.Claim:
		s.tellNeighbours(frame)
		return
	default:
		return // counted by the underlay
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
	if cid, ok := s.encap.PeekCID(sealed); ok {
		s.falcon.Prefetch(cid)
	}
}

// unseal opens one sealed packet, which came in d, and hands on what is in it.
func (s *Shard) unseal(now falcon.Time, d *underlay.Datagram, sealed []byte) {
	o, ok := s.openSealed(now, sealed)
	switch {
	case !ok:
	case o.Use.Class == cm.ClassFalcon: // whatever is inside: the class decides
		s.receiveFalcon(now, d, o)
	default:
		s.receivePlain(now, d, o)
	}
}

// openSealed opens a packet.
func (s *Shard) openSealed(now falcon.Time, sealed []byte) (o *security.Opened, ok bool) {
	defer s.survive(now, "a sealed packet", sealed)
	o, why := s.opener.Open(sealed)
	return o, s.drops.taken(why)
}

// findFalcon finds the Falcon packet in what was opened.
func (s *Shard) findFalcon(now falcon.Time, o *security.Opened) (p security.Packet, ok bool) {
	defer s.survive(now, "an opened packet", o.Clear())
	p, why := s.encap.Open(o)
	if why == security.OtherMode {
		s.peers[o.Use.Peer].sealsOtherwise(now, s.log, s.cfg.PSP.Mode)
	}
	return p, s.drops.taken(why)
}

// taken counts a packet that security refuses.
func (c *dropCounts) taken(why security.Refusal) bool {
	if why != security.None {
		c.count(refusalDrops[why])
	}
	return why == security.None
}

// refusalDrops are the reasons of security as counted.
var refusalDrops = [security.Refusals]dropReason{
	security.Malformed: dropPSPMalformed, security.UnknownSPI: dropPSPSPI, security.BadSeal: dropPSPAuth, security.Replayed: dropReplay,
	security.OtherMode: dropNotFalcon, security.NotFalcon: dropNotFalcon,
	security.WrongSPI: dropConnectionSPI, security.WrongCookie: dropConnectionPCID,
}

// receiveFalcon takes an opened packet of the Falcon class to its connection.
func (s *Shard) receiveFalcon(now falcon.Time, d *underlay.Datagram, o *security.Opened) {
	p, ok := s.findFalcon(now, o)
	if !ok {
		return
	}
	c := s.table.FindSealed(p.CID)
	own := c != nil && addressed(c, d, &p)
	s.capture.opened(now, c, own, &p)
	switch {
	case c == nil:
		s.drops.count(dropUnknownCID)
	case !own:
		s.drops.count(dropWrongAddress)
	default:
		s.receiveFor(now, d, o, c, p.Falcon)
	}
}

// addressed tells whether a packet came from where the connection's peer sends, and to us: by the
// addresses of the functions or, in transport mode, of the NICs.
func addressed(c *conn.Slot, d *underlay.Datagram, p *security.Packet) bool {
	if p.Whole == nil {
		return d.Src == c.Underlay
	}
	return p.Inner.Src == c.Inner.Dst && p.Inner.Dst == c.Inner.Src
}

// receiveFor hands the Falcon packet of a connection to the transport, if its session lets it in.
func (s *Shard) receiveFor(now falcon.Time, d *underlay.Datagram, o *security.Opened, c *conn.Slot, packet []byte) {
	session := sessionOf(c)
	newest, why := session.Check(o)
	if why == security.WrongSPI {
		s.core.SPIRefused(session.Use())
	}
	if !s.drops.taken(why) {
		return
	}
	if newest && d.Src == c.Underlay {
		s.underlay.Authenticated(now, d)
	}
	if !c.Owner.LinkUp {
		s.drops.count(dropLinkDown)
		return
	}
	if c.Owner.Trace != nil {
		noteReceived(s.arrived, c, packet)
	}
	drop := s.falcon.Receive(now, falcon.Packet{
		T1:   o.T1(),
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

// otherModeEvery is the least time between two lines of the log about one peer, and how long vnic
// show nic says it after the last packet.
const otherModeEvery = 60_000_000_000

// sealsOtherwise notes that a peer, which is proved by its key, seals in the psp.mode that is not ours.
func (p *peer) sealsOtherwise(now falcon.Time, log *loglimit.Log, ours string) {
	if p == nil {
		return
	}
	if p.otherMode == 0 || now-p.otherModeTold >= otherModeEvery {
		p.otherModeTold = now
		log.Line(now, slog.LevelWarn, "a peer seals in another psp.mode: set it to the same on all NICs", "peer", p.host, "ours", ours)
	}
	p.otherMode = now
}

// receivePlain takes an opened packet of the gateway class to the port it is for. The key says
// which peer sealed it for which tenant; the cookie must agree.
func (s *Shard) receivePlain(now falcon.Time, d *underlay.Datagram, o *security.Opened) {
	gw := s.plain.gw
	if len(s.plain.ports) == 0 && s.others == nil { // another shard may have some
		s.drops.count(dropNoGateway)
		return
	}
	if !gw.OwnCookie(o) {
		return
	}
	if p := s.peers[o.Use.Peer]; p != nil && d.Src == p.underlay {
		s.underlay.Authenticated(now, d)
	}
	t, packet := gw.Opened(o)
	if t == nil {
		return
	}
	s.capture.plain(gw, captureIn, now, t, packet)
	gw.FromTunnel(t, o.WithRoom(gateway.EthernetLen), d.ECN)
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

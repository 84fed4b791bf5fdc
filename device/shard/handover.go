package shard

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/handover"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// others are the other shards of the NIC, as one sees them: what it hands to them and they to it.
type others struct {
	*handover.End
	wakes []rouse // by shard
	frame handover.Frame
	cut   []byte // one packet of a superframe
	lent  bool   // the gateway has frames that were taken, until the ports have been given them
}

// rouse wakes a shard. It implements effect.Effect.
type rouse struct{ s *Shard }

// Do implements effect.Effect.
func (r *rouse) Do() { r.s.inbox.Rouse() }

// Join makes the shards of a NIC, in order, know each other. It is called before the first Step.
func Join(shards []*Shard) {
	if len(shards) == 1 {
		return
	}
	for i, end := range handover.New(len(shards)) {
		s := shards[i]
		s.others = &others{End: end, cut: make([]byte, s.cfg.Uplink.MTU+tap.FrameOverhead)}
		for _, other := range shards {
			s.others.wakes = append(s.others.wakes, rouse{other})
		}
		s.plain.gw.Handover = plainTo{s}
	}
}

// rouseOthers has those woken that got something, and some more. It is called at the end of a Step.
func (s *Shard) rouseOthers(more uint32) {
	if s.others == nil {
		return
	}
	for given, i := s.others.Given()|more, 0; given != 0; given, i = given>>1, i+1 {
		if given&1 != 0 {
			s.effects.Add(&s.others.wakes[i])
		}
	}
}

// takeHanded takes what other shards handed over, and reports whether there was anything.
func (s *Shard) takeHanded(now falcon.Time) (some bool) {
	if s.others == nil {
		return false
	}
	if s.others.lent {
		s.others.lent = false
		s.others.Done()
	}
	f := &s.others.frame
	for from, ok := s.others.Take(f); ok; from, ok = s.others.Take(f) {
		some = true
		switch f.Kind {
		case handover.Uplink:
			s.receiveOwn(now, f.Data, int(f.A))
		case handover.Neighbour:
			s.overhear(now, f.Data)
		case handover.Inside:
			s.receiveInside(now, from, f)
		case handover.Plain:
			s.plain.gw.FromShard(f.A, f.Data, offloadOf(&f.Header))
			s.others.lent = true
		}
	}
	if !s.others.lent {
		s.others.Done()
	}
	return some
}

// handed reports whether other shards have handed over something that was not taken yet.
func (s *Shard) handed() bool { return s.others != nil && !s.others.Empty() }

// shardOf is the shard that a sealed packet is for, as far as it is in clear text: a packet of the
// gateway class is for the one that has its replay window, another for the one of its connection.
func (s *Shard) shardOf(sealed []byte) int {
	if to, ok := s.opener.Window(sealed); ok {
		return to
	}
	if cid, ok := s.encap.PeekCID(sealed); ok {
		if to := conn.ShardOf(cid); to < s.others.Shards() {
			return to
		}
	}
	return s.index
}

// steer hands a frame of the uplink to the shard that it is for, and reports whether that is another.
// Packets of a superframe may be for several.
func (s *Shard) steer(now falcon.Time, frame []byte, segment int) bool {
	sealed, ok := underlay.Sealed(frame)
	if !ok {
		return false
	}
	to, mixed := s.shardOf(sealed), false
	for at := segment; segment > 0 && at < len(sealed) && !mixed; at += segment {
		mixed = s.shardOf(sealed[at:]) != to
	}
	switch {
	case mixed:
		s.steerEach(now, frame, segment)
	case to == s.index:
		return false
	default:
		s.hand(to, handover.Uplink, segment, frame)
	}
	return true
}

// steerEach cuts up a superframe whose packets are for several shards.
func (s *Shard) steerEach(now falcon.Time, frame []byte, segment int) {
	for i := 0; ; i++ {
		n := tap.Cut(s.others.cut, frame, segment, i)
		if n == 0 {
			return
		}
		one := s.others.cut[:n]
		if !s.steer(now, one, 0) {
			s.receiveOwn(now, one, 0)
		}
	}
}

// hand gives a frame of the uplink to another shard.
func (s *Shard) hand(to int, kind handover.Kind, segment int, frame []byte) {
	b := s.others.Put(to, &handover.Header{Kind: kind, A: uint32(max(segment, 0))}, len(frame))
	if b == nil {
		s.drops.count(dropHandover)
		return
	}
	copy(b, frame)
	s.others.Commit()
}

// tellNeighbours lets all shards hear what stations say of their addresses: each sends by itself.
func (s *Shard) tellNeighbours(frame []byte) {
	if s.others == nil {
		return
	}
	for to := range s.others.Shards() {
		if to != s.index {
			s.hand(to, handover.Neighbour, 0, frame)
		}
	}
}

func (s *Shard) overhear(now falcon.Time, frame []byte) {
	defer s.survive(now, "a frame of the uplink", frame)
	s.underlay.Overhear(now, frame)
}

// sendInside hands the Falcon packet of n bytes at b[falconAt:] to the shard at the other end of the
// connection.
func (s *Shard) sendInside(now falcon.Time, c *conn.Slot, b []byte, n int) {
	packet := b[falconAt : falconAt+n]
	if s.capture.wantClear {
		whole := append(c.Inner.Append(nil, n), packet...)
		s.capture.inside(now, c, whole, ulpPacket(packet))
	}
	h := handover.Header{Kind: handover.Inside, A: c.Conn.RemoteCID(), B: sentAt(now)}
	to := s.others.Put(conn.ShardOf(c.Conn.RemoteCID()), &h, n)
	if to == nil {
		s.drops.count(dropHandover)
		return
	}
	copy(to, packet)
	s.others.Commit()
	s.counters.insidePackets++
	s.counters.insideBytes += uint64(n)
}

// sentAt is the sender's clock as Falcon takes it, in units of 131 ns: what the IV of a sealed packet
// would say (Falcon §10.1, security.Opened.T1).
func sentAt(now falcon.Time) uint32 { return uint32(uint64(now) * 1000 >> 17) }

// receiveInside takes a packet of a connection between functions of two shards.
func (s *Shard) receiveInside(now falcon.Time, from int, f *handover.Frame) {
	c := s.table.FindInside(f.A)
	switch cid, ok := wire.PeekCID(f.Data); {
	case c == nil || !ok || cid != f.A || conn.ShardOf(c.Conn.RemoteCID()) != from:
		s.drops.count(dropUnknownCID)
		return
	case !c.Owner.LinkUp:
		s.drops.count(dropLinkDown)
		return
	}
	if c.Owner.Trace != nil {
		noteReceived(s.clock(), c, f.Data)
	}
	if s.falcon.Receive(now, falcon.Packet{T1: f.B, Data: f.Data}) != 0 {
		s.drops.count(dropFalcon)
		return
	}
	s.drainFalcon(now) // before the ring's room is used again
}

// plainTo hands plain IP to the shards that have its ports. It implements gateway.Handover.
type plainTo struct{ s *Shard }

// ToPort implements gateway.Handover.
func (p plainTo) ToPort(shard uint8, function uint32, frame []byte, off gateway.Offload) bool {
	h := handover.Header{Kind: handover.Plain, A: function}
	putOffload(&h, off)
	b := p.s.others.Put(int(shard), &h, len(frame))
	if b == nil {
		return false
	}
	copy(b, frame)
	p.s.others.Commit()
	return true
}

// putOffload writes what a frame's sender left for others to do beside the frame.
//
//	GSO 8 | needs checksum 8 | size 16 | checksum begins 16 | its offset 16
func putOffload(h *handover.Header, off gateway.Offload) {
	h.Aux[0] = off.GSO
	if off.NeedsCsum {
		h.Aux[1] = 1
	}
	binary.LittleEndian.PutUint16(h.Aux[2:], off.Size)
	binary.LittleEndian.PutUint16(h.Aux[4:], off.CsumStart)
	binary.LittleEndian.PutUint16(h.Aux[6:], off.CsumOffset)
}

func offloadOf(h *handover.Header) gateway.Offload {
	return gateway.Offload{
		GSO: h.Aux[0], NeedsCsum: h.Aux[1] != 0, Size: binary.LittleEndian.Uint16(h.Aux[2:]),
		CsumStart: binary.LittleEndian.Uint16(h.Aux[4:]), CsumOffset: binary.LittleEndian.Uint16(h.Aux[6:]),
	}
}

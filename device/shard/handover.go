package shard

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/handover"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/tape"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// others connects a shard with the other shards of the NIC: it passes frames to them and takes
// theirs.
type others struct {
	rings    rings
	index    int // of this shard
	underlay underlay.Layer
	opener   *security.Opener
	encap    security.Encap
	drops    *dropCounts
	tape     *tape.Tape

	wakes []waker // by shard
	frame handover.Frame
	head  handover.Header // a field: passed to an interface (rings), must not be allocated per call
	cut   []byte          // one packet cut from a superframe
	lent  bool            // the gateway still uses frames that were taken, until the ports have got them
}

var _ gateway.Handover = (*others)(nil)

// rings is a shard's end of the handover: a *handover.End, or a tapedRings in front of it.
type rings interface {
	Shards() int
	Put(to int, h *handover.Header, n int) []byte
	Commit()
	Given() uint32
	Take(f *handover.Frame) (from int, ok bool)
	Done()
	Empty() bool
}

// waker wakes one shard. It implements effect.Effect.
type waker struct{ box interface{ Wake() } }

// Do implements effect.Effect.
func (w *waker) Do() { w.box.Wake() }

// wake wakes the shards that were given something, and those whose bits are set in more. It is
// called at the end of a Step.
func (o *others) wake(effects *effect.List, more uint32) {
	if o == nil {
		return
	}
	for given, i := o.rings.Given()|more, 0; given != 0; given, i = given>>1, i+1 {
		if given&1 != 0 {
			effects.Add(&o.wakes[i])
		}
	}
}

// waiting reports whether other shards have handed over frames that were not taken yet.
func (o *others) waiting() bool { return o != nil && !o.rings.Empty() }

// begin is called before frames are taken: by then the gateway has delivered those it kept.
func (o *others) begin() {
	if o.lent {
		o.lent = false
		o.rings.Done()
	}
}

// end releases the frames that were taken, unless the gateway still uses some.
func (o *others) end() {
	if !o.lent {
		o.rings.Done()
	}
}

// shardOf returns the shard that a sealed packet is for.
func (o *others) shardOf(sealed []byte) int {
	if o.tape.Active() { // a tape holds neither whole superframes nor SPIs, so it holds the result
		return int(o.tape.Number(tape.PacketShard, uint64(o.peekShard(sealed))))
	}
	return o.peekShard(sealed)
}

// peekShard does what shardOf does, by the packet's parts in clear text: for a packet of the gateway
// class it returns the shard with its replay window, otherwise the shard of its connection.
func (o *others) peekShard(sealed []byte) int {
	if to, ok := o.opener.ShardOf(sealed); ok {
		return to
	}
	if cid, ok := o.encap.PeekCID(sealed); ok {
		if to := conn.ShardOf(cid); to < o.rings.Shards() {
			return to
		}
	}
	return o.index
}

// shardFor returns the shard that a frame of the uplink is for; one is false for a superframe with
// packets for more than one shard.
func (o *others) shardFor(frame []byte, segment int) (to int, one bool) {
	sealed, ok := o.underlay.Peek(frame)
	if !ok {
		return o.index, true
	}
	to = o.shardOf(sealed)
	for at := segment; segment > 0 && at < len(sealed); at += segment {
		if o.shardOf(sealed[at:]) != to {
			return 0, false
		}
	}
	return to, true
}

// part cuts packet i from a superframe; nil: there are no more. The result is valid until the next
// call.
func (o *others) part(frame []byte, segment, i int) []byte {
	return o.cut[:tap.Cut(o.cut, frame, segment, i)]
}

// putFrame copies data to another shard, if there is room.
func (o *others) putFrame(to int, h *handover.Header, data []byte) bool {
	o.head = *h
	b := o.rings.Put(to, &o.head, len(data))
	if b == nil {
		return false
	}
	copy(b, data)
	o.rings.Commit()
	return true
}

// forward gives a frame of the uplink to another shard.
func (o *others) forward(to int, kind handover.Kind, segment int, frame []byte) {
	if !o.putFrame(to, &handover.Header{Kind: kind, A: uint32(max(segment, 0))}, frame) {
		o.drops.count(dropHandover)
	}
}

// forwardNeighbour passes a neighbour announcement (ARP, ND) to all other shards, since each sends by itself.
func (o *others) forwardNeighbour(frame []byte) {
	if o == nil {
		return
	}
	for to := range o.rings.Shards() {
		if to != o.index {
			o.forward(to, handover.Neighbour, 0, frame)
		}
	}
}

// forwardLocal sends a Falcon packet to the shard at the other end of a connection inside the NIC.
func (o *others) forwardLocal(now falcon.Time, from pfvf.ID, cid uint32, packet []byte) bool {
	if !o.putFrame(conn.ShardOf(cid), &handover.Header{Kind: handover.Local, Flow: uint32(from), A: cid, B: sentAt(now)}, packet) {
		o.drops.count(dropHandover)
		return false
	}
	return true
}

// sentAt returns the sender's clock in Falcon's units of 131 ns. In a sealed packet the IV holds it
// (Falcon §10.1, security.Opened.T1).
func sentAt(now falcon.Time) uint32 { return uint32(uint64(now) * 1000 >> 17) }

// ToPort implements gateway.Handover: it passes plain IP to a port of another shard.
func (o *others) ToPort(shard uint8, from, function uint32, frame []byte, off gateway.Offload) bool {
	h := handover.Header{Kind: handover.Plain, Flow: from, A: function}
	putOffload(h.Aux[:], off)
	return o.putFrame(int(shard), &h, frame)
}

// ToGroup implements gateway.Handover.
func (o *others) ToGroup(shard uint8, from, tenant uint32, frame []byte) bool {
	return o.putFrame(int(shard), &handover.Header{Kind: handover.Group, Flow: from, A: tenant}, frame)
}

// putOffload encodes a frame's offload, the work that its sender left to others, for another shard or
// a tape.
//
//	GSO 8 | needs checksum 8 | size 16 | checksum begins 16 | its offset 16
func putOffload(b []byte, off gateway.Offload) {
	_ = b[offloadLen-1]
	b[0], b[1] = off.GSO, 0
	if off.NeedsCsum {
		b[1] = 1
	}
	binary.LittleEndian.PutUint16(b[2:], off.Size)
	binary.LittleEndian.PutUint16(b[4:], off.CsumStart)
	binary.LittleEndian.PutUint16(b[6:], off.CsumOffset)
}

const offloadLen = 8

func offloadOf(b []byte) gateway.Offload {
	return gateway.Offload{
		GSO: b[0], NeedsCsum: b[1] != 0, Size: binary.LittleEndian.Uint16(b[2:]),
		CsumStart: binary.LittleEndian.Uint16(b[4:]), CsumOffset: binary.LittleEndian.Uint16(b[6:]),
	}
}

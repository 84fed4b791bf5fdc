package gateway

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/internal/tape"
)

// Bounds of one Step's output for the ports.
const (
	maxOut   = 2176 // frames: one batch of packets from the uplink, and the replies
	maxLists = 64   // frames of several packets
	maxParts = 128  // packets in one
)

// PortFrame is a frame for a port; Parts are consecutive.
type PortFrame struct {
	To    *Endpoint
	Parts [][]byte
	Rest  Rest // follows Parts; may be nil
	Offload

	one  [1][]byte
	list int // index in output.lists; -1: none
	c    coalesced
}

// Whole fetches the rest into Parts. It returns false if the rest is lost.
func (f *PortFrame) Whole() bool { return fetch(&f.Parts[0], &f.Rest) }

// output collects frames for ports until they are written. They use the memory of the input.
type output struct {
	frames   []PortFrame
	lists    [maxLists][maxParts][]byte
	used     int            // number of lists in use
	recent   [maxRecent]int // indices of frames that packets may still join, newest first; -1: none
	segments unsegmented
	copies   []byte // of fragments
	stats    *Stats // the gateway's
	asks     *responder
	tape     *tape.Tape
}

func (o *output) init(stats *Stats, asks *responder) {
	o.stats, o.asks = stats, asks
	o.frames = make([]PortFrame, 0, maxOut)
	o.reset()
}

func (o *output) reset() {
	o.frames, o.used, o.copies = o.frames[:0], 0, o.copies[:0]
	for i := range o.recent {
		o.recent[i] = -1
	}
}

// add appends a frame of one part, and of a rest if there is one. It returns false if there is no room.
func (o *output) add(p *Endpoint, frame []byte, rest Rest, off Offload) bool {
	if len(o.frames) == cap(o.frames) {
		return false
	}
	o.frames = o.frames[:len(o.frames)+1]
	f := &o.frames[len(o.frames)-1]
	f.To, f.Rest, f.Offload, f.list, f.one[0] = p, rest, off, -1, frame
	f.c.open = false
	f.Parts = f.one[:1]
	return true
}

// toPort passes a frame on to a port of this NIC; p is nil for a port of another shard. flow is the
// sender that the frame is charged to.
func (g *Gateway) toPort(flow uint32, to *Target, p *Endpoint, frame []byte, rest Rest, h *header, off Offload) Reason {
	switch {
	case p == nil:
		return g.handOver(flow, to, frame, off)
	case p.deliver(frame[ethLen:], h, off):
		return none
	}
	return g.out.queue(p, frame, rest, h, off)
}

// queue queues a whole frame for a port and writes its Ethernet header.
func (o *output) queue(p *Endpoint, frame []byte, rest Rest, h *header, off Offload) Reason {
	p.ethernet(frame, o.asks.macOf(p, h.dst), h.etherType())
	if !o.add(p, frame, rest, off) {
		return DropPortFull
	}
	return none
}

// splitTo sends the fragments of a packet to a port of this NIC; p is nil for a port of another
// shard. The fragments are copied, since the port takes them later.
func (g *Gateway) splitTo(flow uint32, to *Target, p *Endpoint, packet []byte, h header, off Offload) Reason {
	f := &g.split
	f.start(packet, h, off, to.MTU, true)
	for b := f.Next(); b != nil; b = f.Next() {
		frame := g.out.copied(b)
		if frame == nil {
			return DropPortFull
		}
		binary.BigEndian.PutUint16(frame[12:], typeIPv4)
		part, why := parseIP(b)
		if why == none {
			why = g.toPort(flow, to, p, frame, nil, &part, Offload{})
		}
		if why != none {
			return why
		}
	}
	return none
}

// maxCopied bounds the bytes of fragments that are copied between two calls of Done.
const maxCopied = 256 << 10

// copied returns a frame with a copy of packet, valid until Done, or nil if there is no room.
func (o *output) copied(packet []byte) []byte {
	n := len(o.copies)
	if n+ethLen+len(packet) > maxCopied {
		return nil
	}
	if o.copies == nil {
		o.copies = make([]byte, 0, maxCopied)
	}
	o.copies = o.copies[:n+ethLen+len(packet)]
	frame := o.copies[n:]
	clear(frame[:ethLen])
	copy(frame[ethLen:], packet)
	return frame
}

// Handover passes frames to ports of other shards, by function, and charges them to from: the
// sending function, or a number for the peer. Frames are copied. A method returns false if the
// frame is not taken.
type Handover interface {
	ToPort(shard uint8, from, function uint32, frame []byte, off Offload) bool
	// ToGroup passes a multicast packet to all functions of a tenant in a shard.
	ToGroup(shard uint8, from, tenant uint32, frame []byte) bool
}

// handOver passes a frame to the shard that has its port.
func (g *Gateway) handOver(from uint32, to *Target, frame []byte, off Offload) Reason {
	if to.Shard == g.shard || g.Handover == nil {
		return DropNoPort // the port was removed a moment ago
	}
	if !g.Handover.ToPort(to.Shard, from, to.Function, frame, off) {
		return DropShardFull
	}
	g.stats.HandedOver++
	return none
}

// FromShard takes a frame that another shard's gateway handed over (Handover.ToPort) for a port of
// this shard. The gateway uses the frame's memory until Done.
func (g *Gateway) FromShard(function uint32, frame []byte, off Offload) {
	defer g.survive(nil, g.mark(), frame)
	p := g.byFunc[function]
	if why := g.fromShard(p, frame, off); why != none {
		g.stats.drop(p, why)
	}
}

func (g *Gateway) fromShard(p *Endpoint, frame []byte, off Offload) Reason {
	switch {
	case p == nil:
		return DropNoPort
	case !p.up:
		return DropPortDown
	}
	h, why := parseIP(frame[ethLen:])
	switch {
	case why != none:
		return why
	case p.deliver(frame[ethLen:], &h, off):
		return none
	case off != Offload{}:
		return g.out.queue(p, frame, nil, &h, off)
	}
	return g.out.joinOrQueue(p, frame[:ethLen+h.total], &h)
}

// Output completes the frames for ports and returns them. They are good until Done, and until the
// memory of the input is reused.
func (g *Gateway) Output() []PortFrame {
	g.responder.replies.flush(&g.out)
	for i := range g.out.frames {
		f := &g.out.frames[i]
		if len(f.Parts) > 1 {
			f.finish()
		}
	}
	return g.out.frames
}

// Waiting reports whether there is output.
func (g *Gateway) Waiting() bool { return len(g.out.frames) > 0 || g.responder.replies.count > 0 }

// Done discards the frames of Output: they were written, or need not be.
func (g *Gateway) Done() { g.out.reset() }

// Deliver writes the waiting frames to their ports. A frame that a port does not take is dropped
// and counted, as on any network interface. Deliver calls took for each frame that was taken.
func (g *Gateway) Deliver(took func(*PortFrame)) {
	if !g.Waiting() {
		return
	}
	frames := g.Output()
	for i := range frames {
		f := &frames[i]
		if !f.plain() && !f.To.accepts(f.Offload) {
			g.out.writeSegments(f, took)
			continue
		}
		g.out.write(f, took)
	}
	g.Done()
}

// write writes a frame to its port and counts it.
func (o *output) write(f *PortFrame, took func(*PortFrame)) {
	if !f.To.write(f) {
		o.refused(f)
		return
	}
	o.wrote(f)
	took(f)
}

// write sends the guest a frame.
func (p *Endpoint) write(f *PortFrame) bool {
	if p.Device == nil || p.Lost {
		return false
	}
	if f.Rest == nil {
		return p.Device.Write(f.Parts, f.Offload)
	}
	if to, ok := p.Device.(Gatherer); ok {
		return to.WriteWith(f.Parts[0], f.Rest, f.Offload)
	}
	return f.Whole() && p.Device.Write(f.Parts, f.Offload)
}

// wrote counts a frame that a port took.
func (o *output) wrote(f *PortFrame) {
	o.stats.ToPorts++
	for _, b := range f.Parts {
		o.stats.ToPortBytes += uint64(len(b))
	}
	if f.Rest != nil {
		o.stats.ToPortBytes += uint64(f.Rest.Len())
	}
}

// refused counts a frame that a port did not take.
func (o *output) refused(f *PortFrame) { o.stats.drop(f.To, DropPortFull) }

// unsegmented is scratch state for writing a frame to a guest that does not accept its offload.
type unsegmented struct {
	frame   PortFrame
	forward Forward
}

// writeSegments writes a frame as separate, complete packets to a port whose guest does neither
// checksums nor segmentation. They are cut in place; the Ethernet header is written in front of
// each.
func (o *output) writeSegments(f *PortFrame, took func(*PortFrame)) {
	if !f.Whole() {
		o.refused(f)
		return
	}
	frame := f.Parts[0]
	h, why := parseIP(frame[ethLen:])
	if why != none { // the headers are not all in the first part; the guest accepted such frames a moment ago
		o.refused(f)
		return
	}
	s := &o.segments
	s.forward.start(frame[ethLen:ethLen+h.total], h, f.Offload, f.To.MTU, false)
	ethernet := [ethLen]byte(frame)
	for at := 0; ; {
		begin := max(at-s.forward.headers, 0)
		packet := s.forward.Next()
		if packet == nil {
			return
		}
		whole := frame[begin : begin+ethLen+len(packet)]
		copy(whole, ethernet[:])
		at = s.forward.at
		s.frame = PortFrame{To: f.To, list: -1}
		s.frame.one[0] = whole
		s.frame.Parts = s.frame.one[:1]
		o.write(&s.frame, took)
	}
}

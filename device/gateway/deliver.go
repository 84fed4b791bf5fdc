package gateway

import "encoding/binary"

// Output completes the frames for ports and returns them. They are good until Done, and until the
// memory of what came in is used again.
func (g *Gateway) Output() []PortFrame {
	g.replies.flush(&g.out)
	for i := range g.out.frames {
		f := &g.out.frames[i]
		if len(f.Parts) > 1 {
			f.finish()
		}
	}
	return g.out.frames
}

// Waiting tells whether there is output.
func (g *Gateway) Waiting() bool { return len(g.out.frames) > 0 || g.replies.count > 0 }

// Done says that the frames of Output were written; those that a port did not take are counted by
// Refused.
func (g *Gateway) Done() { g.out.reset() }

// Deliver gives the ports what there is for them. What a port does not take is dropped and counted,
// as any network interface does. took hears of each frame that one took.
func (g *Gateway) Deliver(took func(*PortFrame)) {
	if !g.Waiting() {
		return
	}
	frames := g.Output()
	for i := range frames {
		f := &frames[i]
		if !f.plain() && !f.To.accepts(f.Offload) {
			g.deliverSingly(f, took)
			continue
		}
		g.write(f, took)
	}
	g.Done()
}

func (g *Gateway) write(f *PortFrame, took func(*PortFrame)) {
	if !f.To.write(f) {
		g.Refused(f)
		return
	}
	g.Wrote(f)
	took(f)
}

// Wrote counts a frame that a port took.
func (g *Gateway) Wrote(f *PortFrame) {
	g.stats.ToPorts++
	for _, b := range f.Parts {
		g.stats.ToPortBytes += uint64(len(b))
	}
}

// Refused counts a frame that a port did not take.
func (g *Gateway) Refused(f *PortFrame) { g.drop(f.To, DropPortFull) }

// joinOrDeliver puts a packet before a port, perhaps together with those before it.
func (g *Gateway) joinOrDeliver(p *Endpoint, frame []byte, h *header) Reason {
	p.ethernet(frame, h.etherType())
	joined, ok := g.out.join(p, frame, h)
	if !ok {
		return DropPortFull
	}
	if joined {
		g.stats.Coalesced++
	}
	return none
}

// deliver puts a whole frame, whose Ethernet header is written here, before a port.
func (g *Gateway) deliver(p *Endpoint, frame []byte, off Offload) Reason {
	p.ethernet(frame, binary.BigEndian.Uint16(frame[12:]))
	if !g.out.add(p, frame, off) {
		return DropPortFull
	}
	return none
}

// handOver gives a frame to the shard that has its port.
func (g *Gateway) handOver(to *Target, frame []byte, off Offload) Reason {
	if to.Shard == g.shard || g.Handover == nil {
		return DropNoPort // it was here a moment ago
	}
	if !g.Handover.ToPort(to.Shard, to.Function, frame, off) {
		return DropShardFull
	}
	g.stats.HandedOver++
	return none
}

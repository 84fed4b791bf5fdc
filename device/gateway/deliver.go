package gateway

// Output completes the frames for ports and returns them. They are good until Done, and until the
// memory of the input is reused.
func (g *Gateway) Output() []PortFrame {
	g.station.replies.flush(&g.out)
	for i := range g.out.frames {
		f := &g.out.frames[i]
		if len(f.Parts) > 1 {
			f.finish()
		}
	}
	return g.out.frames
}

// Waiting reports whether there is output.
func (g *Gateway) Waiting() bool { return len(g.out.frames) > 0 || g.station.replies.count > 0 }

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
			g.out.writeSingly(f, took)
			continue
		}
		g.out.write(f, took)
	}
	g.Done()
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

package gateway

// Take starts processing frames of ports. All frames of the previous call must have been processed.
func (g *Gateway) Take(in []PortInput) {
	if len(in) > 0 {
		g.taken.in, g.taken.next = in, 0
	}
}

// Busy reports whether taken frames are still to be processed.
func (g *Gateway) Busy() bool { return g.taken.next < len(g.taken.in) || g.taken.cuts }

// Outgoing processes taken frames until one has packets for a tunnel, and returns nil when all are
// done. The Forward's Next returns the packets; the caller calls EndFrame after the last one.
func (g *Gateway) Outgoing(now int64) *Forward {
	t := &g.taken
	for !t.cuts {
		if t.next == len(t.in) {
			return nil
		}
		in := &t.in[t.next]
		t.next++
		t.cuts = g.FromPort(now, in, &t.cut)
	}
	return &t.cut
}

// EndFrame ends the processing of the frame that Outgoing returned.
func (g *Gateway) EndFrame() { g.taken.cuts = false }

package gateway

// Take begins with frames of ports. Those before must be done.
func (g *Gateway) Take(in []PortInput) {
	if len(in) > 0 {
		g.taken.in, g.taken.next = in, 0
	}
}

// Busy tells whether frames that were taken are not done.
func (g *Gateway) Busy() bool { return g.taken.next < len(g.taken.in) || g.taken.cuts }

// Outgoing goes on with the frames that were taken until one has packets for a tunnel; nil: all are
// done. Next gives its packets, and EndFrame says that there are no more.
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

// EndFrame is done with the frame at hand.
func (g *Gateway) EndFrame() { g.taken.cuts = false }

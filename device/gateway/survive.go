package gateway

// mark records how many frames and replies were queued before a frame was processed.
type mark struct{ frames, replies int }

func (g *Gateway) mark() mark { return mark{len(g.out.frames), g.station.replies.count} }

// survive is deferred while a frame is processed. If the frame makes this code panic, survive
// counts it and removes the output that it began: no guest or peer can crash the NIC with a frame.
func (g *Gateway) survive(p *Endpoint, m mark, frame []byte) {
	v := recover()
	if v == nil {
		return
	}
	g.stats.drop(p, DropPanic)
	g.station.replies.count = m.replies
	g.out.frames = g.out.frames[:m.frames]
	for i := range g.out.recent { // some may be of the removed frames
		g.out.recent[i] = -1
	}
	if g.Panicked != nil {
		g.Panicked(v, frame)
	}
}

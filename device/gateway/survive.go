package gateway

// mark is how much there was for ports before a frame.
type mark struct{ frames, replies int }

func (g *Gateway) mark() mark { return mark{len(g.out.frames), g.station.replies.count} }

// survive is deferred around a frame. One that finds a fault in this code is counted and what it
// began is taken back: no guest and no peer can end the NIC with a frame.
func (g *Gateway) survive(p *Endpoint, m mark, frame []byte) {
	v := recover()
	if v == nil {
		return
	}
	g.stats.drop(p, DropPanic)
	g.station.replies.count = m.replies
	g.out.frames = g.out.frames[:m.frames]
	for i := range g.out.recent { // some may be of those taken back
		g.out.recent[i] = -1
	}
	if g.Panicked != nil {
		g.Panicked(v, frame)
	}
}

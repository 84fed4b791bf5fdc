package gateway

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
	case p.takes(frame[ethLen:], &h, off):
		return none
	case off != Offload{}:
		return g.out.deliver(p, frame, nil, off)
	}
	return g.out.joinOrDeliver(p, frame[:ethLen+h.total], &h)
}

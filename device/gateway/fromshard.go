package gateway

import "encoding/binary"

// FromShard takes a frame that the gateway of another shard has for a port of this one, from
// Handover.ToPort. Its memory is the gateway's until Output is done.
func (g *Gateway) FromShard(function uint32, frame []byte, off Offload) {
	defer g.survive(nil, g.mark(), frame)
	p := g.byFunc[function]
	if why := g.fromShard(p, frame, off); why != none {
		g.drop(p, why)
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
	case p.takes(frame[ethLen:], &h):
		return none
	case off != Offload{}:
		return g.deliver(p, frame, off)
	}
	return g.joinOrDeliver(p, frame[:ethLen+h.total], &h)
}

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

package sim

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// Host is one engine with its uplink and the flows it takes part in.
type Host struct {
	Engine *falcon.Engine
	Lost   uint64 // frames the uplink lost

	net     *Network
	index   int
	seed    uint64
	frames  uint64      // sent
	sending bool        // the uplink is busy
	busy    int64       // until then, picoseconds
	wake    falcon.Time // of the timer event that counts
	flows   []*flow     // that start here

	held      []*packet // by the reordering uplink
	expecting bool      // a holdOver event is scheduled
}

// Fill implements falcon.ULP. Packets of a Network have no content.
func (h *Host) Fill(_ *falcon.Conn, _ falcon.TxnKind, _ uint64, dst []byte) (int, error) {
	return len(dst), nil
}

func (h *Host) receive(p *packet) {
	if h.Engine.Receive(h.net.Now, falcon.Packet{T1: p.t1, Hops: hops, CE: p.ce, Data: p.buf[:p.n]}) == wire.DropNone {
		p.to.peer.received(p)
	} else {
		p.to.peer.ended(p, false)
	}
	h.serve()
	h.net.put(p)
}

// serve does everything the host can do now.
func (h *Host) serve() {
	h.drain()
	if !h.sending {
		h.transmit()
	}
	if at := h.Engine.Deadline(); at < h.wake {
		h.wake = max(at, h.net.Now)
		h.net.at(h.wake, timerDue, h.index, nil)
	}
}

func (h *Host) drain() {
	var ev falcon.Event
	for h.Engine.Next(&ev) {
		ev.Conn.User().(*endpoint).handle(h.net.Now, &ev)
	}
}

// transmit puts one packet on the uplink, which is idle.
func (h *Host) transmit() {
	n := h.net
	p := n.get()
	size, conn := h.Engine.Transmit(n.Now, p.buf[:])
	if size == 0 {
		n.put(p)
		return
	}
	p.n, p.t1 = size, falcon.FalconTime(n.Now)
	from := conn.User().(*endpoint)
	p.to = from.peer
	p.dst = p.to.host
	from.sent(p)
	h.busy = max(h.busy, n.Now*picos) + n.serialise(size+Overhead)
	h.sending = true
	n.at((h.busy+picos-1)/picos, uplinkIdle, h.index, nil)
	h.impair(p)
}

// impair sends a frame over the uplink. A frame held back goes right after the frame that is so many positions later, so
// at most that many overtake it; if none comes for a round trip it goes alone.
func (h *Host) impair(p *packet) {
	n := h.net
	index := h.frames
	h.frames++
	switch {
	case n.cfg.Loss > 0 && draw(h.seed, index, drawLoss) < n.cfg.Loss:
		h.Lost++
		n.lost(p)
	case n.cfg.Reorder > 0 && draw(h.seed, index, drawReorder) < n.cfg.Reorder:
		p.release = index + 1 + uint64(draw(h.seed, index, drawJitter)*float64(n.cfg.ReorderBy))
		h.held = append(h.held, p)
		h.expectIdle()
	default:
		h.fly(p)
	}
	kept := h.held[:0]
	for _, q := range h.held {
		if q.release <= index {
			h.fly(q)
		} else {
			kept = append(kept, q)
		}
	}
	h.held = kept
}

func (h *Host) fly(p *packet) { h.net.at(h.busy/picos+h.net.hop(), atSwitch, p.dst.index, p) }

// expectIdle makes releaseAll look when the host has sent nothing for a round trip.
func (h *Host) expectIdle() {
	if !h.expecting {
		h.expecting = true
		h.net.at(h.busy/picos+max(h.net.cfg.RTT, 1000), holdOver, h.index, nil)
	}
}

// releaseAll ends the wait of held packets unless the host is still sending.
func (h *Host) releaseAll() {
	n := h.net
	h.expecting = false
	if len(h.held) == 0 {
		return
	}
	if h.busy/picos+max(n.cfg.RTT, 1000) > n.Now {
		h.expectIdle()
		return
	}
	for _, p := range h.held {
		n.at(n.Now+n.hop(), atSwitch, p.dst.index, p)
	}
	h.held = h.held[:0]
}

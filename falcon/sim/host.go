package sim

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// Host is one engine with its uplink.
type Host struct {
	Engine *falcon.Engine

	net     *Network
	index   int
	line    *line       // to the switch
	sending bool        // the uplink is busy
	wake    falcon.Time // time of the valid timer event; others are ignored
}

// Fill implements falcon.ULP. Packets of a Network have no content.
func (h *Host) Fill(_ *falcon.Conn, _ falcon.TxnKind, _ uint64, dst []byte) (int, error) {
	return len(dst), nil
}

func (h *Host) receive(p *packet) {
	if h.Engine.Receive(h.net.Now, falcon.Packet{T1: p.t1, Hops: hops, CE: p.ce, Data: p.buf[:p.n]}) == wire.DropNone {
		p.from.received(p)
	} else {
		p.from.ended(p, false)
	}
	h.serve()
	h.net.packets.put(p)
}

// serve does everything the host can do now.
func (h *Host) serve() {
	h.drain()
	if !h.sending {
		h.transmit()
	}
	if at := h.Engine.Deadline(); at < h.wake {
		h.wake = max(at, h.net.Now)
		h.net.events.at(h.wake, timerDue, h.index, nil)
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
	p := n.packets.get()
	size, conn := h.Engine.Transmit(n.Now, p.buf)
	if size == 0 {
		n.packets.put(p)
		return
	}
	p.n, p.t1 = size, falcon.FalconTime(n.Now)
	from := conn.User().(*endpoint)
	p.dst, p.from = from.peer.host, &from.history
	p.from.sent(p)
	idle := h.line.occupy(size + Overhead)
	h.sending = true
	n.events.at((idle+picos-1)/picos, uplinkIdle, h.index, nil)
	h.line.send(p)
}

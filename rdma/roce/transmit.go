package roce

import (
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// transmit writes the next packet of the connection into b and returns its length, 0 if there is
// none now. Notifications and acknowledgements are sent even if the rate holds back other packets.
func (c *Conn) transmit(now transport.Time, b []byte) (n int) {
	if n = c.responder.sendCNP(now, b); n > 0 {
		return n
	}
	if n = c.responder.sendReply(b); n > 0 || c.requester.held(now) {
		return n
	}
	n = c.sendNext(now, b)
	c.requester.left(now, n)
	return n
}

// sendNext sends an answer or a request, alternately.
func (c *Conn) sendNext(now transport.Time, b []byte) (n int) {
	if c.turn = !c.turn; c.turn {
		if n = c.requester.send(now, b); n > 0 {
			return n
		}
	}
	if n = c.responder.sendAnswer(now, b); n > 0 || c.turn {
		return n
	}
	return c.requester.send(now, b)
}

// unreadable ends a request or answer that could not be sent because its memory is gone.
func (c *Conn) unreadable(now transport.Time) {
	switch {
	case c.user == nil:
	case c.responder.spoiled:
		c.responder.refuseUnreadable(now)
	default:
		c.requester.failFront(now)
	}
	c.settle(now)
}

// receive handles a packet of the peer.
func (c *Conn) receive(now transport.Time, h *wire.Headers, data []byte, marked bool) {
	op := h.BTH.Opcode
	if op == wire.CNP {
		c.port.stats.CNPs++
		c.e.congestion.Notified(&c.requester.traffic, now)
		return
	}
	if marked {
		c.responder.marks.see(h)
		c.wake()
	}
	switch {
	case op.Info().Response:
		c.requester.response(now, h, data)
	case c.terms.Unreliable:
		c.responder.takeUnreliable(now, h, data)
	default:
		c.responder.request(now, h, data)
	}
	c.settle(now)
}

// speaks reports whether an opcode belongs to the connection's service (IBA §9.6.1.3.2). Unreliable
// connections have no masked atomics, and XRC uses the prefix that theirs would have.
func (c *Conn) speaks(op wire.Opcode) bool {
	service := op & wire.ServiceMask
	return op == wire.CNP || service == c.service || service == c.service|wire.Vendor && !c.terms.Unreliable
}

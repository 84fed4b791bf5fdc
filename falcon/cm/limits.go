package cm

import "fmt"

// room checks whether a function may have one more connection. If not, it first ends connections in
// TIME-WAIT.
func (h *handshake) room(now Time, fn uint32) error {
	for u := h.conns.functions[fn]; u != nil && len(u.conns) >= h.cfg.MaxPerFunction; {
		if !h.endOldest(now, fn) {
			return fmt.Errorf("cm: %d connections of function %#06x: %w", len(u.conns), fn, ErrLimit)
		}
	}
	return nil
}

// endOldest ends the function's oldest connection in TIME-WAIT, and reports whether there was one.
// TIME-WAIT only helps a peer that has missed the end of the connection. A function that makes
// connections faster than their TIME-WAIT passes must neither block others nor be refused itself.
func (h *handshake) endOldest(now Time, fn uint32) bool {
	u := h.conns.functions[fn]
	if u == nil || u.waiting.Empty() {
		return false
	}
	h.out.stats.CutShort++
	_ = h.fire(now, u.waiting.First(), evGiveUp, args{})
	return true
}

// end fires an event of which the peer may have to be told. If the link is down, the peer learns of
// it when the link is back.
func (h *handshake) end(now Time, c *conn, ev event, a args) error {
	err := h.fire(now, c, ev, a)
	if !c.peer.up && c.state != StateClosed {
		_ = h.fire(now, c, evPeerDown, args{reason: ReasonPeerDown})
	}
	return err
}

// stale tells the peer that a connection that it named does not exist here.
func (h *handshake) stale(p *peer, id, remoteID uint32) {
	h.out.stats.UnknownConnection++
	rej := REJ{SenderID: id, ReceiverID: remoteID, Reason: ReasonStale}
	h.out.send(p, rej.Append(nil))
}

// illegal converts an event's error to one that says that a message is not allowed in the
// connection's state.
func illegal(c *conn, t MessageType, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cm: %v for connection %d in state %v: %w", t, c.id, c.state, ErrProtocol)
}

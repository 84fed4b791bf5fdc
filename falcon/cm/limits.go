package cm

import "fmt"

// room checks a function's limit for one more connection. Connections that only rest make way.
func (h *handshake) room(now Time, fn uint32) error {
	for u := h.conns.functions[fn]; u != nil && len(u.conns) >= h.cfg.MaxPerFunction; {
		if !h.endOldest(now, fn) {
			return fmt.Errorf("cm: %d connections of function %#06x: %w", len(u.conns), fn, ErrLimit)
		}
	}
	return nil
}

// endOldest ends the rest of the connection of a function that has rested longest, if one does. The
// rest is a courtesy to a peer that has missed the end; a function that makes connections faster
// than they rest may not keep others from making any, and is not refused any itself.
func (h *handshake) endOldest(now Time, fn uint32) bool {
	u := h.conns.functions[fn]
	if u == nil || u.waiting.Empty() {
		return false
	}
	h.out.stats.CutShort++
	_ = h.fire(now, u.waiting.First(), evGiveUp, args{})
	return true
}

// end fires an event that may have to be told to a peer. If its link is down it
// learns of it when the link is back.
func (h *handshake) end(now Time, c *conn, ev event, a args) error {
	err := h.fire(now, c, ev, a)
	if !c.peer.up && c.state != StateClosed {
		_ = h.fire(now, c, evPeerDown, args{reason: ReasonPeerDown})
	}
	return err
}

// stale tells the peer that a connection it named does not exist here.
func (h *handshake) stale(p *peer, id, remoteID uint32) {
	h.out.stats.UnknownConnection++
	rej := REJ{SenderID: id, ReceiverID: remoteID, Reason: ReasonStale}
	h.out.send(p, rej.Append(nil))
}

// illegal says that an event, of a message, is not to be in the connection's state.
func illegal(c *conn, t MessageType, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cm: %v for connection %d in state %v: %w", t, c.id, c.state, ErrProtocol)
}

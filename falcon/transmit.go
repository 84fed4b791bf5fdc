package falcon

// Transmit writes the next Falcon packet, header and payload, into dst and returns its length and
// connection. It returns 0 if nothing may be sent now. dst needs room for wire.MaxHeaderLen bytes
// and the largest MTU of the connections. A connection whose packet does not fit is skipped until
// another event queues it again.
func (e *Engine) Transmit(now Time, dst []byte) (int, *Conn) {
	for {
		class, ok := e.schedule.pick()
		if !ok {
			return 0, nil
		}
		q := &e.schedule.queues[class]
		e.schedule.urgent = q.round.Urgent()
		c := q.pop()
		if c.closed {
			q.endTurn(c)
			q.settle(c, 0)
			continue
		}
		n := c.send(now, class, dst)
		if n == 0 {
			q.endTurn(c)
			q.settle(c, 0)
			continue // blocked: the event that unblocks it queues it again
		}
		c.requeue(class, n)
		q.settle(c, n)
		e.schedule.charge(class)
		e.stats.PacketsSent++
		return n, c
	}
}

// Urgent reports whether the packet that Transmit returned last was within its function's
// guarantee. Such a packet should be sent at once, without waiting for others to share its frame.
func (e *Engine) Urgent() bool { return e.schedule.urgent }

// requeue queues the connection, which has sent n bytes, for its next packet of the class: in front
// while its turn lasts, else at the end. A turn is one packet, or several small ones up to
// Profile.TurnBytes. Consecutive packets of one connection are cheaper for both ends and share a
// superframe.
func (c *sender) requeue(class txClass, n int) {
	q := &c.share.conns[class]
	q.bytes += n
	if q.bytes+n <= c.e.profile.TurnBytes && c.wants(class) && q.pushFront(c.self()) {
		return
	}
	q.endTurn()
	if c.wants(class) {
		q.push(c.self())
	}
}

func (c *sender) send(now Time, class txClass, dst []byte) int {
	if class == classAck {
		return c.sendAck(now, dst)
	}
	if now < c.nextSend {
		c.awaitGap()
		return 0
	}
	switch class {
	case classRetransmit:
		return c.sendAgain(now, dst)
	case classInitiator:
		return c.sendFresh(now, c.nextRequest(), dst)
	default:
		t := c.fresh(TxnPullData)
		if t != nil && !c.maySend(TxnPullData) {
			t = nil
		}
		return c.sendFresh(now, t, dst)
	}
}

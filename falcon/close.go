package falcon

import "github.com/falcon-vnic/vnic/internal/ring"

// Close ends the connection at once. Outstanding transactions complete with CmplDeadConn, and
// EvClosed is the last event. The peer is not told; that is the connection manager's work.
func (c *Conn) Close(now Time) {
	if !c.closed {
		c.shutdown(CmplAck, CloseLocal)
	}
}

// Abort ends the connection like Close, but for a given reason: EvClosed has code CmplDeadConn and
// that reason.
func (c *Conn) Abort(now Time, reason CloseReason) {
	if !c.closed {
		c.shutdown(CmplDeadConn, reason)
	}
}

// Drain lets the connection finish the transactions in progress. From now on Push and Pull fail
// with ErrDraining. EvDrained reports when it is safe to call Close: all transactions of this side
// are done, the peer's requests are answered, and the last acknowledgement has been sent. Requests
// of the peer are served until then; the peer stops sending them when the connection managers have
// agreed on it.
func (c *Conn) Drain(now Time) {
	c.draining = true
	c.checkDrained()
}

// fail ends a connection whose peer does not answer.
func (c *outcome) fail() {
	c.shutdown(CmplDeadConn, CloseResync)
}

func (c *outcome) shutdown(code Completion, reason CloseReason) {
	e := c.e
	e.stats.ConnsClosed[reason]++
	c.closed = true // nothing is sent or armed from here on
	e.conns.remove(c.self())
	e.schedule.part(c.self())
	e.wheel.Stop(&c.txnTimer)
	e.wheel.Stop(&c.paceTimer)
	e.wheel.Stop(&c.flightTimer)
	e.wheel.Stop(&c.ackTimer)
	e.wheel.Stop(&c.reclaimTimer)

	for rsn := c.baseRSN; rsn != c.nextRSN; rsn++ {
		t := c.txns.Get(rsn)
		if t == nil || t.done {
			continue
		}
		if t.resync == 0 {
			t.code = CmplDeadConn
		}
		c.complete(t, t.code)
	}
	for _, w := range [...]*txWindow{&c.reqTx, &c.dataTx} {
		for psn := w.base; psn != w.next; psn++ {
			if t := c.packetAt(w, psn); t != nil {
				c.packets(w).Clear(psn)
				c.abandon(t)
			}
		}
		w.base = w.next
	}
	for kind := range TxnPullData + 1 {
		for t := c.fresh(kind); t != nil; t = c.fresh(kind) {
			c.abandon(t)
		}
	}
	for t := e.waiting.stalled.First(); t != nil; {
		next := t.place.Next()
		if t.conn == c.self() {
			c.abandon(t)
		}
		t = next
	}
	for rx := range c.rxs.All() {
		if rx != doneRx {
			c.putRx(rx)
		}
	}
	c.rxs = ring.Window[rxTxn]{}
	c.requests = 0
	c.nacks, c.busy = nil, 0
	u := c.emit(EvClosed)
	u.ev.Code, u.ev.Reason = code, reason
	e.waiting.recheck = true
}

// abandon ends the packet of a transaction whose connection has closed. The initiator's
// transactions were already completed.
func (c *outcome) abandon(t *txn) {
	t.unlink()
	c.e.wheel.Stop(&t.timer)
	t.packetDone = true
	if t.kind == TxnPullData {
		c.responseDone(t, CmplDeadConn)
		return
	}
	c.release(t)
}

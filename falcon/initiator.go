package falcon

import "github.com/falcon-vnic/vnic/falcon/credit"

// Push issues a push (Falcon §8.4.3.3) of length bytes, which Fill writes when the packet is sent.
// EvPushDone with tag follows exactly once. ErrXoff: no room, EvCredit follows; ErrTooLong: length
// is negative or above the MTU; ErrClosed.
func (c *Conn) Push(now Time, tag uint64, length int) error {
	return c.push(now, tag, length, false)
}

// PushLast is Push for the last packet of a message: with the software profile it asks for an
// acknowledgement at once.
func (c *Conn) PushLast(now Time, tag uint64, length int) error {
	return c.push(now, tag, length, true)
}

func (c *Conn) push(now Time, tag uint64, length int, last bool) error {
	if length < 0 || length > int(c.mtu) {
		return ErrTooLong
	}
	cost := credit.PushCost(length, c.e.cfg.CreditCell)
	t, err := c.issue(now, TxnPush, tag, length, &cost)
	if err != nil {
		return err
	}
	if t != nil {
		t.state, t.last = pushReqUlpRx, last
	}
	return nil
}

// Pull issues a pull (Falcon §8.4.3.1): reqLen bytes of ULP headers, at most MaxPullHeader, in the
// request, and up to respLen bytes in the response. EvPullDone with tag follows exactly once.
// Errors as Push.
func (c *Conn) Pull(now Time, tag uint64, reqLen, respLen int) error {
	if reqLen < 0 || reqLen > min(int(c.mtu), MaxPullHeader) || respLen < 0 || respLen > int(c.mtu) {
		return ErrTooLong
	}
	cost := credit.PullCost(respLen, c.e.cfg.CreditCell)
	t, err := c.issue(now, TxnPull, tag, reqLen, &cost)
	if err != nil {
		return err
	}
	if t != nil {
		t.state, t.pullLength = pullReqUlpRx, int32(respLen)
	}
	return nil
}

// issue takes credits and an RSN for a transaction and queues its packet; nil without error if it
// was rejected.
func (c *Conn) issue(now Time, kind TxnKind, tag uint64, length int, cost *credit.Cost) (*txn, error) {
	if c.closed {
		return nil, ErrClosed
	}
	if c.draining {
		return nil, ErrDraining
	}
	offered := c.offered
	c.offered = false
	if !c.hasRoom() || !c.take(cost) {
		if c.cfg.NoFlowControl || c.hopeless(cost) {
			c.reject(kind, tag, cost)
			return nil, nil
		}
		c.wait(cost, offered)
		return nil, ErrXoff
	}
	t := c.e.newTxn(c, kind)
	t.tag, t.length, t.cost, t.started = tag, int32(length), *cost, -1
	t.rsn = c.nextRSN
	c.nextRSN++
	c.txns.Put(c.baseRSN, t.rsn, t)
	t.enlist(inFresh + listID(kind))
	c.e.queues[classInitiator].push(c)
	return t, nil
}

// reject completes a transaction that was never begun (Falcon §8.2.3): it takes no RSN, so nothing
// waits for it.
func (c *Conn) reject(kind TxnKind, tag uint64, cost *credit.Cost) {
	ev := &c.e.emit(EvPushDone, c).ev
	ev.Tag, ev.Code = tag, CmplLocalRsrc
	if kind == TxnPull {
		ev.Kind = EvPullDone
	}
	if c.hopeless(cost) {
		ev.Code = CmplUlpCdtErr
	}
	c.e.stats.Rejected++
	c.e.stats.Completions[ev.Code]++
}

// hopeless reports whether a limit is below cost, so that waiting would not help (Falcon §11,
// kUlpCmplCdtErr).
func (c *Conn) hopeless(cost *credit.Cost) bool { return c.credits != nil && !c.credits.Possible(cost) }

// hasRoom reports whether another transaction can begin. Responses have contexts of their own (ULP
// Data of Falcon §8.2.2, CR rule 2): their number is bounded by the peers' requests that were
// admitted.
func (c *Conn) hasRoom() bool {
	return c.nextRSN-c.baseRSN < c.e.profile.MaxTxn && c.e.txnsInUse-c.e.responses < c.e.cfg.TxContexts
}

// wait puts the connection in the list of those that get EvCredit when there is room again: at the
// end, or in front if it was offered room that others took before it could. Else those that come
// first might take all of it every time.
func (c *Conn) wait(cost *credit.Cost, offered bool) {
	e := c.e
	e.stats.Xoffs++
	c.waitingCost = *cost
	if c.waiting {
		return
	}
	c.waiting = true
	if offered {
		*e.waiting.PushFront() = c
	} else {
		*e.waiting.Push() = c
	}
}

// wakeWaiting sends EvCredit to the waiting connections that could issue now what they were
// refused, the longest waiting first and no more of them than can do so together; it reports
// whether there was one. It looks only after something was freed.
func (e *Engine) wakeWaiting() bool {
	if !e.recheck || e.holdCredit {
		return false
	}
	e.recheck = false
	e.wakeStalled()
	// What was offered and not taken up yet is not offered twice.
	offered := e.offered[:0]
	for _, c := range e.offered {
		if c.offered && !c.closed && c.take(&c.waitingCost) {
			offered = append(offered, c)
		}
	}
	for range e.waiting.Len() {
		place := e.waiting.Pop()
		c := *place
		*place = nil
		switch {
		case c.closed:
			c.waiting = false
		case c.hasRoom() && c.take(&c.waitingCost):
			c.waiting, c.offered = false, true
			offered = append(offered, c)
			e.emit(EvCredit, c)
		case c.hopeless(&c.waitingCost): // a limit was lowered: it learns that when it tries again
			c.waiting = false
			e.emit(EvCredit, c)
		default:
			*e.waiting.Push() = c
		}
	}
	for _, c := range offered {
		if c.credits != nil && c.credits.Return(&c.waitingCost) != nil {
			e.stats.CreditErrors++
		}
	}
	if len(offered) < len(e.offered) {
		clear(e.offered[len(offered):])
	}
	e.offered = offered
	return e.events.Len() > 0
}

// complete records the outcome of a transaction of the initiator and reports it, on an ordered
// connection when all earlier ones are reported (Falcon §8.4.2).
func (c *Conn) complete(t *txn, code Completion) {
	if t.done {
		return
	}
	t.done, t.code = true, code
	if !c.ordered {
		c.report(t)
		c.txns.Put(c.baseRSN, t.rsn, doneTxn)
		c.release(t)
	}
	for c.baseRSN != c.nextRSN {
		head := c.txns.Get(c.baseRSN)
		if !head.done {
			break
		}
		c.txns.Clear(c.baseRSN)
		c.baseRSN++
		c.e.recheck = true
		if head != doneTxn {
			c.report(head)
			c.release(head)
		}
	}
	c.checkDrained()
}

// report emits the completion event.
func (c *Conn) report(t *txn) {
	u := c.e.emit(EvPushDone, c)
	ev := &u.ev
	ev.RSN, ev.Tag, ev.Code, ev.ULPCode = t.rsn, t.tag, t.code, t.ulpCode
	c.e.stats.Completions[t.code]++
	if t.kind == TxnPull {
		ev.Kind = EvPullDone
		t.state = pullDataUlpTx
		if t.code == CmplAck {
			ev.Data, ev.Length = t.data, len(t.data)
		}
	} else {
		t.state = pushCplTx
	}
	u.cell, t.cell, t.data = t.cell, nil, nil
}

// release frees a transaction once it is reported and its packet needs no more care.
func (c *Conn) release(t *txn) {
	if !t.done || !t.packetDone {
		return
	}
	if int32(t.rsn-c.baseRSN) >= 0 && c.txns.At(c.baseRSN, t.rsn) == t {
		return // still waits for earlier completions
	}
	c.e.putTxn(t)
}

// txnTimeout is the time since a transaction was first sent at which it completes with CmplLocalTO,
// 0 = never.
func (c *Conn) txnTimeout() Time {
	if limit := c.e.profile.TxnTimeout; limit > 0 && c.cfg.GiveUp != Forever {
		return max(limit, c.cfg.GiveUp)
	}
	return 0
}

// timeTxn starts the timer of the transactions if a first one was sent.
func (c *Conn) timeTxn(now Time) {
	if limit := c.txnTimeout(); limit > 0 && !c.txnTimer.Armed() {
		c.e.wheel.Arm(&c.txnTimer, c, timerTxn, now+limit)
	}
}

// onTxnTimer completes transactions that were sent too long ago. One that was not sent yet waits
// for a window: that is not the peer's silence, and those before it are timed. A receiver that is
// not ready is alive: its NACK, which later transactions wait for too, gives all of them new time.
func (c *Conn) onTxnTimer(now Time) {
	limit, next := c.txnTimeout(), never
	for rsn := c.baseRSN; int32(c.nextRSN-rsn) > 0; rsn++ {
		if int32(rsn-c.baseRSN) < 0 {
			continue // reported with an earlier one
		}
		t := c.txns.Get(rsn)
		if t.done || t.started < 0 {
			continue
		}
		if at := max(t.started, c.lastRNR) + limit; at > now {
			next = min(next, at)
			continue
		}
		c.e.stats.TxnTimeouts++
		c.expireTxn(t)
	}
	if next != never {
		c.e.wheel.Arm(&c.txnTimer, c, timerTxn, next)
	}
}

package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/ring"
)

// Push issues a push (Falcon §8.4.3.3) of length bytes, which Fill writes when the packet is sent.
// Exactly one EvPushDone with tag follows. Push returns ErrXoff if there is no room (EvCredit
// follows), ErrTooLong if length is negative or above the MTU, ErrClosed or ErrDraining.
func (c *Conn) Push(now Time, tag uint64, length int) error {
	return c.push(now, tag, length, false)
}

// PushLast issues a push that is the last packet of a message. With the software profile it asks
// for an acknowledgement at once.
func (c *Conn) PushLast(now Time, tag uint64, length int) error {
	return c.push(now, tag, length, true)
}

func (c *transactions) push(now Time, tag uint64, length int, last bool) error {
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

// Pull issues a pull (Falcon §8.4.3.1): the request carries reqLen bytes of ULP headers, at most
// MaxPullHeader, and the response up to respLen bytes. Exactly one EvPullDone with tag follows. Its
// errors are those of Push.
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

// issue takes credits and an RSN for a transaction and queues its packet. It returns nil without an
// error if the transaction was rejected.
func (c *transactions) issue(now Time, kind TxnKind, tag uint64, length int, cost *credit.Cost) (*txn, error) {
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
	t := c.e.contexts.newTxn(c.self(), kind)
	t.tag, t.length, t.cost, t.started = tag, int32(length), *cost, -1
	t.rsn = c.nextRSN
	c.nextRSN++
	c.txns.Put(c.baseRSN, t.rsn, t)
	t.enlist(inFresh + listID(kind))
	c.e.schedule.queues[classInitiator].push(c.self())
	return t, nil
}

// reject completes a transaction that was never begun (Falcon §8.2.3). It takes no RSN, so nothing
// waits for it.
func (c *transactions) reject(kind TxnKind, tag uint64, cost *credit.Cost) {
	ev := &c.emit(EvPushDone).ev
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

// hasRoom reports whether another transaction can begin. On an ordered connection whose peer is not
// ready none can, because it could only wait.
func (c *transactions) hasRoom() bool {
	return !(c.ordered && c.parked > 0) && c.nextRSN-c.baseRSN < c.e.profile.MaxTxn && c.e.contexts.room()
}

// outcome completes transactions and delivers requests in RSN order. It also decides what the
// target has room for.
type outcome struct{ state }

// complete records the outcome of a transaction of the initiator and reports it. An ordered
// connection reports it once all earlier ones are reported (Falcon §8.4.2).
func (c *outcome) complete(t *txn, code Completion) {
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
		c.e.waiting.recheck = true
		if head != doneTxn {
			c.report(head)
			c.release(head)
		}
	}
	c.checkDrained()
}

// report emits the completion event.
func (c *outcome) report(t *txn) {
	u := c.emit(EvPushDone)
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

// release frees a transaction that was reported and whose packet is acknowledged or gone.
func (c *outcome) release(t *txn) {
	if !t.done || !t.packetDone {
		return
	}
	if c.txns.At(c.baseRSN, t.rsn) == t {
		return // still waits for earlier completions
	}
	c.putTxn(t)
}

// responseDone ends a pull response.
func (c *outcome) responseDone(t *txn, code Completion) {
	c.responses--
	if !t.refusal {
		u := c.emit(EvResponseDone)
		u.ev.RSN, u.ev.Tag, u.ev.Code = t.rsn, t.tag, code
	}
	c.putTxn(t)
}

// checkDrained is called whenever a transaction, request or acknowledgement of the connection has
// ended.
func (c *outcome) checkDrained() {
	if c.draining {
		c.endDrain()
	}
}

// endDrain emits EvDrained if a draining connection has nothing left to do.
func (c *outcome) endDrain() {
	if c.drained || c.closed {
		return
	}
	if c.baseRSN != c.nextRSN || c.reqTx.base != c.reqTx.next || c.dataTx.base != c.dataTx.next || c.requests+c.responses != 0 {
		return
	}
	if c.ackCount > 0 || c.busy&(wantAck|wantNack) != 0 {
		c.ackSoon() // otherwise the peer would wait for it
		return
	}
	c.drained = true
	c.emit(EvDrained)
}

// transactions starts and answers the transactions that the ULPs of both ends request.
type transactions struct {
	delivery

	waitingCost credit.Cost // of the request refused with ErrXoff
}

// waiting holds the connections and responses that wait for credits or contexts.
type waiting struct {
	conns   ring.Queue[*Conn] // refused with ErrXoff
	stalled list.List[txn]    // pull responses that wait for credits
	offered []*Conn           // connections with EvCredit that did not issue yet
	hold    bool              // EvCredit is held back
	recheck bool              // something was freed since the connections were last examined
}

// wait puts the connection in the list of those that get EvCredit when there is room again. It goes
// to the end, or in front if it had been offered room that others took before it could. Otherwise
// the connections that come first might take all room every time.
func (c *transactions) wait(cost *credit.Cost, offered bool) {
	w := &c.e.waiting
	c.e.stats.Xoffs++
	c.waitingCost = *cost
	if c.waiting {
		return
	}
	c.waiting = true
	if offered {
		*w.conns.PushFront() = c.self()
	} else {
		*w.conns.Push() = c.self()
	}
}

// wake sends EvCredit to the waiting connections that could now issue what they were refused. The
// longest waiting come first, and no more are woken than can issue together. It is called only
// after something was freed.
func (w *waiting) wake() {
	if w.hold {
		return
	}
	w.recheck = false
	w.wakeStalled()
	// Room that was offered and not used yet is not offered twice.
	offered := w.offered[:0]
	for _, c := range w.offered {
		if c.offered && !c.closed && c.takeNow(&c.waitingCost) {
			offered = append(offered, c)
		}
	}
	for range w.conns.Len() {
		place := w.conns.Pop()
		c := *place
		*place = nil
		switch {
		case c.closed:
			c.waiting = false
		case c.hasRoom() && c.takeNow(&c.waitingCost):
			c.waiting, c.offered = false, true
			offered = append(offered, c)
			c.emit(EvCredit)
		case c.hopeless(&c.waitingCost): // a limit was lowered: the ULP learns that when it tries again
			c.waiting = false
			c.emit(EvCredit)
		default:
			*w.conns.Push() = c
		}
	}
	for _, c := range offered {
		c.giveBack(&c.waitingCost)
	}
	clear(w.offered[min(len(offered), len(w.offered)):])
	w.offered = offered
}

// wakeStalled queues the responses that can get credits now.
func (w *waiting) wakeStalled() {
	for t := w.stalled.First(); t != nil; {
		next := t.place.Next()
		t.conn.startResponse(t, true)
		t = next
	}
}

// again withdraws all unused offers and makes wake examine all connections.
func (w *waiting) again() {
	for _, c := range w.offered {
		c.offered = false
	}
	w.recheck = true
}

// onPullData completes a pull of the initiator (Falcon §8.4.3.2).
func (c *receiver) onPullData(now Time, h *wire.Header, payload []byte) wire.Drop {
	if d := c.dataRx.check(&c.dataBits.rx, h.PSN); d != wire.DropNone {
		c.coalesce(now, wholePacket)
		return d
	}
	t := c.pullOf(h.RSN)
	verdict := wire.DropNone
	switch {
	case t == nil:
		verdict = wire.DropUnknownRSN
	case len(payload) > int(t.pullLength):
		verdict = wire.DropPullLength
	case c.ordered && h.RSN != c.baseRSN:
		t.cell = c.e.contexts.cells.copyData(c.self(), payload)
		t.data = t.cell.buf
	default:
		t.data = payload
	}
	c.dataRx.acknowledge(&c.dataBits.ack, &c.dataBits.rx, h.PSN)
	c.received(now, h)
	if t == nil {
		return verdict
	}
	c.implicitAck(t)
	if verdict != wire.DropNone {
		c.complete(t, CmplOpErr)
		return verdict
	}
	t.state = pullDataRx
	c.complete(t, CmplAck)
	return verdict
}

// pullOf returns the pull with that RSN if it was sent and still waits for data, else nil.
func (c *delivery) pullOf(rsn uint32) *txn {
	t := c.txns.At(c.baseRSN, rsn)
	if t == nil || t.done || t.state != pullReqTx && t.state != pullReqAckd {
		return nil
	}
	return t
}

// txnTimeout returns how long after its first transmission a transaction completes with
// CmplLocalTO; 0 means never.
func (c *delivery) txnTimeout() Time {
	if limit := c.e.profile.TxnTimeout; limit > 0 && c.cfg.GiveUp != Forever {
		return max(limit, c.cfg.GiveUp)
	}
	return 0
}

// timeTxn starts the transaction timer of the connection if it does not run.
func (c *delivery) timeTxn(now Time) {
	if limit := c.txnTimeout(); limit > 0 && !c.txnTimer.Armed() {
		c.e.wheel.Arm(&c.txnTimer, c.self(), timerTxn, now+limit)
	}
}

// expireTxn completes a transaction that is too old. If its packet is not acknowledged, a Resync
// replaces it.
func (c *delivery) expireTxn(t *txn) {
	code := CmplLocalTO
	if t.resync != 0 {
		code = t.code
	} else if !t.packetDone {
		c.resync(t, wire.ResyncTimeout, CmplLocalTO)
	}
	c.complete(t, code)
}

// onTxnTimer completes transactions that were first sent too long ago. A transaction that was not
// sent yet is not timed: it waits for a window, not for the peer, and those before it are timed. A
// receiver that is not ready is alive: its RNR NACK restarts the time of all transactions, because
// later ones wait for it too.
func (c *delivery) onTxnTimer(now Time) {
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
		c.e.wheel.Arm(&c.txnTimer, c.self(), timerTxn, next)
	}
}

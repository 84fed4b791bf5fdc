package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// initiator holds the transactions that this side began, in the order of their RSNs (Falcon §8.4).
type initiator struct {
	refused credit.Cost // of the request refused with ErrXoff
	parked  int32       // transactions that have given back their credits
	parkRSN uint32      // RSN of the first of them; may be lower

	conn       *Conn
	rx         *receiver        // of responses
	flight     *flight          // with the requests sent
	base, next uint32           // RSN: oldest not reported, next to assign
	txns       ring.Window[txn] // by RSN
	timer      timer.Handle     // fires no later than the timeout of the oldest transaction
	waiting    bool             // refused with ErrXoff
	offered    bool             // EvCredit was sent for refused, and nothing was issued since
}

// Push issues a push (Falcon §8.4.3.3) of length bytes, which Fill writes when the packet is sent.
// Exactly one EvPushDone with tag follows. Push returns ErrXoff if there is no room (EvCredit
// follows), ErrTooLong if length is negative or above the MTU, ErrClosed or ErrDraining.
func (c *Conn) Push(now Time, tag uint64, length int) error {
	return c.initiator.push(now, tag, length, false)
}

// PushLast issues a push that is the last packet of a message. With the software profile it asks
// for an acknowledgement at once.
func (c *Conn) PushLast(now Time, tag uint64, length int) error {
	return c.initiator.push(now, tag, length, true)
}

func (ini *initiator) push(now Time, tag uint64, length int, last bool) error {
	if length < 0 || length > ini.conn.cfg.MTU {
		return ErrTooLong
	}
	cost := credit.PushCost(length, ini.conn.e.cfg.CreditCell)
	t, err := ini.issue(now, TxnPush, tag, length, &cost)
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
	return c.initiator.pull(now, tag, reqLen, respLen)
}

func (ini *initiator) pull(now Time, tag uint64, reqLen, respLen int) error {
	mtu := ini.conn.cfg.MTU
	if reqLen < 0 || reqLen > min(mtu, MaxPullHeader) || respLen < 0 || respLen > mtu {
		return ErrTooLong
	}
	cost := credit.PullCost(respLen, ini.conn.e.cfg.CreditCell)
	t, err := ini.issue(now, TxnPull, tag, reqLen, &cost)
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
func (ini *initiator) issue(now Time, kind TxnKind, tag uint64, length int, cost *credit.Cost) (*txn, error) {
	if ini.conn.closed {
		return nil, ErrClosed
	}
	if ini.conn.draining {
		return nil, ErrDraining
	}
	offered := ini.offered
	ini.offered = false
	if !ini.hasRoom() || !ini.conn.credits.take(cost) {
		if ini.conn.credits.aboveLimit(cost) {
			ini.reject(kind, tag)
			return nil, nil
		}
		ini.wait(cost, offered)
		return nil, ErrXoff
	}
	t := ini.conn.e.contexts.newTxn(ini.conn, kind)
	t.tag, t.length, t.cost, t.started = tag, int32(length), *cost, -1
	t.rsn = ini.next
	ini.next++
	ini.txns.Put(ini.base, t.rsn, t)
	t.enlist(inUnsent)
	ini.conn.queue(classInitiator)
	return t, nil
}

// reject completes a transaction that costs more than a limit allows (Falcon §8.2.3). It was never
// begun and takes no RSN, so nothing waits for it.
func (ini *initiator) reject(kind TxnKind, tag uint64) {
	ev := &ini.conn.emit(EvPushDone).ev
	ev.Tag, ev.Code = tag, CmplUlpCdtErr
	if kind == TxnPull {
		ev.Kind = EvPullDone
	}
	ini.conn.e.stats.Rejected++
	ini.conn.e.stats.Completions[ev.Code]++
}

// hasRoom reports whether another transaction can begin. On an ordered connection whose peer is not
// ready none can, because it could only wait.
func (ini *initiator) hasRoom() bool {
	return !(ini.conn.cfg.Ordered && ini.parked > 0) && ini.next-ini.base < ini.conn.e.profile.MaxTxn && ini.conn.e.contexts.room()
}

// complete records the outcome of a transaction of the initiator and reports it. An ordered
// connection reports it once all earlier ones are reported (Falcon §8.4.2).
func (ini *initiator) complete(t *txn, code Completion) {
	if t.done {
		return
	}
	t.done, t.code = true, code
	if !ini.conn.cfg.Ordered {
		ini.report(t)
		ini.txns.Put(ini.base, t.rsn, doneTxn)
		ini.release(t)
	}
	for ini.base != ini.next {
		head := ini.txns.Get(ini.base)
		if !head.done {
			break
		}
		ini.txns.Clear(ini.base)
		ini.base++
		ini.conn.e.waiting.recheck = true
		if head != doneTxn {
			ini.report(head)
			ini.release(head)
		}
	}
	ini.conn.checkDrained()
}

// report emits the completion event.
func (ini *initiator) report(t *txn) {
	u := ini.conn.emit(EvPushDone)
	ev := &u.ev
	ev.RSN, ev.Tag, ev.Code, ev.ULPCode = t.rsn, t.tag, t.code, t.ulpCode
	ini.conn.e.stats.Completions[t.code]++
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
func (ini *initiator) release(t *txn) {
	if !t.done || !t.packetDone {
		return
	}
	if ini.txns.At(ini.base, t.rsn) == t {
		return // still waits for earlier completions
	}
	ini.conn.putTxn(t)
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
func (ini *initiator) wait(cost *credit.Cost, offered bool) {
	w := &ini.conn.e.waiting
	ini.conn.e.stats.Xoffs++
	ini.refused = *cost
	if ini.waiting {
		return
	}
	ini.waiting = true
	if offered {
		*w.conns.PushFront() = ini.conn
	} else {
		*w.conns.Push() = ini.conn
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
		if c.initiator.offered && !c.closed && c.credits.retake(&c.initiator.refused) {
			offered = append(offered, c)
		}
	}
	for range w.conns.Len() {
		place := w.conns.Pop()
		c := *place
		*place = nil
		switch {
		case c.closed:
			c.initiator.waiting = false
		case c.initiator.hasRoom() && c.credits.retake(&c.initiator.refused):
			c.initiator.waiting, c.initiator.offered = false, true
			offered = append(offered, c)
			c.emit(EvCredit)
		case c.credits.aboveLimit(&c.initiator.refused): // a limit was lowered: the ULP learns that when it tries again
			c.initiator.waiting = false
			c.emit(EvCredit)
		default:
			*w.conns.Push() = c
		}
	}
	for _, c := range offered {
		c.credits.giveBack(&c.initiator.refused)
	}
	clear(w.offered[min(len(offered), len(w.offered)):])
	w.offered = offered
}

// wakeStalled queues the responses that can get credits now.
func (w *waiting) wakeStalled() {
	for t := w.stalled.First(); t != nil; {
		next := t.place.Next()
		t.conn.target.startResponse(t, true)
		t = next
	}
}

// again withdraws all unused offers and makes wake examine all connections.
func (w *waiting) again() {
	for _, c := range w.offered {
		c.initiator.offered = false
	}
	w.recheck = true
}

// pullOf returns the pull with that RSN if it was sent and still waits for data, else nil.
func (ini *initiator) pullOf(rsn uint32) *txn {
	t := ini.txns.At(ini.base, rsn)
	if t == nil || t.done || t.state != pullReqTx && t.state != pullReqAckd {
		return nil
	}
	return t
}

// timeout returns how long after its first transmission a transaction completes with CmplLocalTO; 0
// means never.
func (ini *initiator) timeout() Time {
	if limit := ini.conn.e.profile.TxnTimeout; limit > 0 && ini.conn.cfg.GiveUp != Forever {
		return max(limit, ini.conn.cfg.GiveUp)
	}
	return 0
}

// arm starts the transaction timer of the connection if it does not run.
func (ini *initiator) arm(now Time) {
	if limit := ini.timeout(); limit > 0 && !ini.timer.Armed() {
		ini.conn.e.arm(&ini.timer, ini, now+limit)
	}
}

// expire completes a transaction that is too old. If its packet is not acknowledged, a Resync
// replaces it.
func (ini *initiator) expire(t *txn) {
	code := CmplLocalTO
	if t.resync != 0 {
		code = t.code
	} else if !t.packetDone {
		ini.flight.resync(t, wire.ResyncTimeout, CmplLocalTO)
	}
	ini.complete(t, code)
}

// expired completes transactions that were first sent too long ago. A transaction that was not sent
// yet is not timed: it waits for a window, not for the peer, and those before it are timed. A
// receiver that is not ready is alive: its RNR NACK restarts the time of all transactions, because
// later ones wait for it too.
func (ini *initiator) expired(now Time) {
	limit, next := ini.timeout(), never
	for rsn := ini.base; int32(ini.next-rsn) > 0; rsn++ {
		if int32(rsn-ini.base) < 0 {
			continue // reported with an earlier one
		}
		t := ini.txns.Get(rsn)
		if t.done || t.started < 0 {
			continue
		}
		if at := max(t.started, ini.flight.lastRNR) + limit; at > now {
			next = min(next, at)
			continue
		}
		ini.conn.e.stats.TxnTimeouts++
		ini.expire(t)
	}
	if next != never {
		ini.conn.e.arm(&ini.timer, ini, next)
	}
}

// onPullData receives the response to a pull, which completes it (Falcon §8.4.3.2).
func (ini *initiator) onPullData(now Time, h *wire.Header, payload []byte) wire.Drop {
	if d := ini.rx.data.classify(h.PSN); d != wire.DropNone {
		ini.rx.coalesce(now, wholePacket)
		return d
	}
	t := ini.pullOf(h.RSN)
	verdict := wire.DropNone
	switch {
	case t == nil:
		verdict = wire.DropUnknownRSN
	case len(payload) > int(t.pullLength):
		verdict = wire.DropPullLength
	case ini.conn.cfg.Ordered && h.RSN != ini.base:
		t.cell = ini.conn.e.contexts.cells.copyData(ini.conn, payload)
		t.data = t.cell.buf
	default:
		t.data = payload
	}
	ini.rx.data.acknowledge(h.PSN)
	ini.rx.received(now, h)
	if t == nil {
		return verdict
	}
	ini.flight.implicitAck(t)
	if verdict != wire.DropNone {
		ini.complete(t, CmplOpErr)
		return verdict
	}
	t.state = pullDataRx
	ini.complete(t, CmplAck)
	return verdict
}

// pullDataGone completes a pull whose response the target will not deliver.
func (ini *initiator) pullDataGone(rsn uint32, code wire.ResyncCode) {
	t := ini.pullOf(rsn)
	if t == nil {
		return
	}
	ini.flight.implicitAck(t)
	if code == wire.ResyncCID {
		ini.complete(t, CmplTargetNackCID)
		return
	}
	ini.complete(t, CmplRemoteErr)
}

// onRefused ends a transaction that the target does not accept. A Resync fills the hole, and when
// it is acknowledged the transaction completes (Falcon §8.4.3.5). A pull whose request is
// acknowledged leaves no hole and completes at once.
func (ini *initiator) onRefused(t *txn, code wire.ResyncCode, completion Completion, ulpCode uint8) {
	if t.resync != 0 || t.done {
		return
	}
	t.ulpCode = ulpCode
	if t.packetDone {
		ini.complete(t, completion)
		return
	}
	ini.flight.resync(t, code, completion)
}

// onRNR delays the retransmission by the larger of RTO and the timeout that the NACK asks for
// (Falcon §8.4.3.4). The NACK proves that the peer is alive.
func (ini *initiator) onRNR(now Time, t *txn, index uint8) {
	if t.kind != TxnPush || t.resync != 0 {
		return
	}
	t.unlink()
	ini.flight.uncountResent(t)
	ini.parkAll(t)
	t.rnrDelay, t.rnrSeen = true, true
	t.retries, t.firstSent, ini.flight.lastRNR = 0, now, now
	ini.conn.e.arm(&t.timer, t, now+max(ini.flight.cc.rto(), wire.RNRTimeout(index)))
	if !t.done {
		u := ini.conn.emit(EvRNR)
		u.ev.RSN, u.ev.Tag = t.rsn, t.tag
	}
}

// parkAll releases the credits of a push that the peer's receiver was not ready for. On an ordered
// connection it also parks what waits behind the first such push: pulls whose request is
// acknowledged, and transactions that were not sent.
func (ini *initiator) parkAll(t *txn) {
	if ini.parked == 0 {
		ini.parkRSN = t.rsn
	}
	ini.park(t)
	if !ini.conn.cfg.Ordered || int32(t.rsn-ini.parkRSN) > 0 {
		return
	}
	ini.parkRSN = t.rsn
	for rsn := t.rsn + 1; rsn != ini.next; rsn++ {
		if later := ini.txns.Get(rsn); !later.done && (later.state == pullReqAckd || later.firstSent < 0 && later.in != inNone) {
			ini.park(later)
		}
	}
}

// park releases the credits of a transaction that waits for the peer's receiver, if it holds any.
func (ini *initiator) park(t *txn) {
	if t.parked || t.cost == (credit.Cost{}) || ini.conn.credits.node == nil || !ini.conn.credits.node.Park(&t.cost) {
		return
	}
	t.parked = true
	ini.parked++
	ini.conn.e.contexts.parked++
	ini.conn.e.waiting.recheck = true
}

// unpark charges a parked transaction, which is about to be sent, for its credits again.
func (ini *initiator) unpark(t *txn) {
	if t.parked {
		ini.conn.credits.node.Unpark(&t.cost)
		ini.unparked(t)
	}
}

// unparked clears the parked state of a transaction.
func (ini *initiator) unparked(t *txn) {
	t.parked = false
	ini.parked--
	ini.conn.e.contexts.parked--
	if ini.parked == 0 {
		ini.conn.e.waiting.recheck = true // the connection takes requests again
	}
}

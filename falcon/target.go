package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// onPush receives push data at the target (Falcon §8.5.3.3).
func (c *Conn) onPush(now Time, h *wire.Header, payload []byte) wire.Drop {
	switch d := c.dataRx.check(&c.dataBits.rx, h.PSN); d {
	case wire.DropNone:
	case wire.DropDuplicate:
		return c.onPushAgain(now, h, payload)
	default:
		c.coalesce(now, wholePacket)
		return d
	}
	if d := c.checkRSN(h.RSN); d != wire.DropNone {
		if d == wire.DropResource {
			c.queueNack(nackEntry{psn: h.PSN, code: wire.NackResource})
		}
		return d
	}
	head := !c.ordered || h.RSN == c.targetNext
	refuse := !head && c.refusesLater()
	var k *cell
	if !c.admit(head) {
		return c.refuseResource(h.PSN, false)
	}
	if !head && !refuse && !c.copyPayload(&k, payload) {
		c.returnOne(credit.NetPktRx)
		return c.refuseResource(h.PSN, false)
	}
	rx := c.e.newRx(c)
	rx.push, rx.rsn, rx.psn, rx.ackReq, rx.since = true, h.RSN, h.PSN, h.AckReq, now
	c.rxs.Put(c.targetBase, rx.rsn, rx)
	c.requests++
	setBit(&c.dataBits.rx, h.PSN-c.dataRx.base)
	c.coalesce(now, halfPacket)
	if !head && h.AckReq {
		c.ackSoon()
	}
	switch {
	case refuse:
		rx.state, rx.nack, rx.rnr = rxNotReady, wire.NackRNR, c.holdRNR
		c.nackAgain(rx)
		c.watchPeer(now)
		return wire.DropNotReady
	case !head:
		rx.wait(k)
		c.watchPeer(now)
	default:
		rx.data = payload
		c.deliver(rx)
	}
	return wire.DropNone
}

// onPushAgain handles push data received before. Unless it was refused, it is a duplicate.
func (c *Conn) onPushAgain(now Time, h *wire.Header, payload []byte) wire.Drop {
	rx := c.rxs.At(c.targetBase, h.RSN)
	if bit(&c.dataBits.ack, h.PSN-c.dataRx.base) || rx == nil || rx == doneRx || rx.psn != h.PSN || !rx.push {
		c.coalesce(now, wholePacket)
		return wire.DropDuplicate
	}
	switch {
	case rx.state == rxRefused: // the NACK was lost (Falcon §6.6.5)
		c.nackAgain(rx)
		return wire.DropDuplicate
	case rx.state != rxNotReady:
		c.coalesce(now, wholePacket)
		return wire.DropDuplicate
	}
	rx.ackReq, rx.since = h.AckReq, now
	if !c.ordered || rx.rsn == c.targetNext {
		rx.data = payload
		c.coalesce(now, halfPacket)
		c.deliver(rx)
		return wire.DropNone
	}
	var k *cell
	if c.refusesLater() || !c.copyPayload(&k, payload) {
		c.nackAgain(rx)
		return wire.DropNotReady
	}
	rx.wait(k)
	c.coalesce(now, halfPacket)
	return wire.DropNone
}

// onPullRequest receives a pull request at the target (Falcon §8.5.3.1).
func (c *Conn) onPullRequest(now Time, m *wire.PullRequest, payload []byte) wire.Drop {
	h := &m.Header
	if len(payload) > MaxPullHeader {
		return wire.DropLength
	}
	if d := c.reqRx.check(&c.reqBits, h.PSN); d != wire.DropNone {
		c.coalesce(now, wholePacket)
		return d
	}
	d := c.checkRSN(h.RSN)
	if d != wire.DropNone && d != wire.DropResource {
		return d
	}
	head := !c.ordered || h.RSN == c.targetNext
	if d == wire.DropResource {
		c.queueNack(nackEntry{psn: h.PSN, code: wire.NackResource, request: true})
		return d
	}
	if c.requests+c.responses >= 2*MaxTxWindow || !c.admit(head) {
		return c.refuseResource(h.PSN, true)
	}
	rx := c.e.newRx(c)
	rx.rsn, rx.psn, rx.length, rx.since = h.RSN, h.PSN, int(m.RequestLength), now
	rx.data = rx.inline[:copy(rx.inline[:], payload)]
	c.rxs.Put(c.targetBase, rx.rsn, rx)
	c.requests++
	c.reqRx.acknowledge(&c.reqBits, &c.reqBits, h.PSN)
	c.received(now, h)
	if head {
		c.deliver(rx)
	} else {
		rx.state = rxWaiting
		c.watchPeer(now)
	}
	return wire.DropNone
}

// checkRSN reports whether a request with this RSN and a new PSN can be taken.
func (c *Conn) checkRSN(rsn uint32) wire.Drop {
	n := rsn - c.targetBase
	switch {
	case int32(n) < 0:
		return wire.DropRSN
	case n >= MaxTxWindow:
		return wire.DropResource
	case c.rxs.At(c.targetBase, rsn) != nil:
		return wire.DropRSN
	}
	return wire.DropNone
}

// admit is the resource check for requests from the network (Falcon §8.2.4); what it admits is
// charged. In the green zone, within the connection's part of Config.RxContexts and the credits of
// every level, everything is accepted. In the red zone above it every connection may still have its
// head of line (UR rule, §8.2.1.1), or everything would stop with contexts full of requests that
// wait for one.
func (c *Conn) admit(head bool) bool {
	first := head && c.guaranteed()
	if c.e.rxInUse < c.e.cfg.RxContexts && (first || c.mayHoldContext()) && c.takeOne(credit.NetPktRx) {
		return true
	}
	if !first {
		return false
	}
	if c.credits != nil {
		c.credits.TakeOne(credit.NetPktRx, true)
	}
	return true
}

// refuseResource answers a request there is no room for.
func (c *Conn) refuseResource(psn uint32, request bool) wire.Drop {
	c.e.stats.RedZone++
	c.queueNack(nackEntry{psn: psn, code: wire.NackResource, request: request})
	return wire.DropResource
}

// guaranteed reports whether a head of line may have the context reserved for it: on an ordered
// connection there is one at a time, on an unordered one every request is a head of line, so the
// first counts.
func (c *Conn) guaranteed() bool { return c.ordered || c.requests == 0 }

func (c *Conn) copyPayload(k **cell, payload []byte) bool {
	*k = c.e.copyRequest(c, payload)
	return *k != nil
}

// deliver queues the event of a request whose turn it is, and of those that waited for it.
func (c *Conn) deliver(rx *rxTxn) {
	c.queueRequest(rx)
	if c.ordered && !c.hold {
		c.targetNext++
		c.deliverInOrder()
	}
}

func (c *Conn) queueRequest(rx *rxTxn) {
	rx.state = rxQueued
	if rx.cell != nil {
		rx.cell.rx = nil // it waits no more
	}
	u := c.e.emit(EvPull, c)
	u.ev.RSN, u.ev.Length, u.rx, u.gen = rx.rsn, rx.length, rx, rx.gen
	if rx.push {
		u.ev.Kind, u.ev.Length = EvPush, len(rx.data)
	}
}

// deliverInOrder delivers waiting requests from targetNext on (Falcon §8.5.2).
func (c *Conn) deliverInOrder() {
	if !c.ordered {
		return
	}
	for !c.hold {
		rx := c.rxs.At(c.targetBase, c.targetNext)
		if rx == nil || rx.state == rxNotReady {
			return
		}
		if rx.state == rxWaiting {
			c.queueRequest(rx)
		}
		c.targetNext++
	}
}

// take hands the payload of a queued request to the event; false if the request was withdrawn
// meanwhile.
func (rx *rxTxn) take(e *Engine, gen uint32, ev *Event) bool {
	if rx.gen != gen || rx.state != rxQueued {
		return false
	}
	rx.state = rxULP
	ev.Data = rx.data
	if rx.push { // a pull keeps its headers for redelivery
		e.lastCell, rx.cell, rx.data = rx.cell, nil, nil
	}
	return true
}

// wait keeps the payload of a push that waits for earlier ones.
func (rx *rxTxn) wait(k *cell) {
	rx.state, rx.cell, rx.data, k.rx = rxWaiting, k, k.buf, rx
}

// dropPayload forgets the payload.
func (rx *rxTxn) dropPayload(e *Engine) {
	if rx.cell != nil {
		e.putCell(rx.cell)
	}
	rx.cell, rx.data = nil, nil
}

// withULP finds a request the ULP has not answered yet.
func (c *Conn) withULP(rsn uint32) *rxTxn {
	rx := c.rxs.At(c.targetBase, rsn)
	if c.closed || rx == nil || rx.state != rxULP || rx.rsn != rsn {
		return nil
	}
	return rx
}

// AckPush accepts a push delivered by EvPush. Only now is its packet acknowledged to the peer
// (Falcon §6.1.1.1). Unknown RSNs are ignored: the initiator may have withdrawn the push.
func (c *Conn) AckPush(now Time, rsn uint32) {
	rx := c.withULP(rsn)
	if rx == nil || !rx.push {
		return
	}
	c.dataRx.acknowledge(&c.dataBits.ack, &c.dataBits.rx, rx.psn)
	c.coalesce(now, halfPacket)
	if rx.ackReq {
		c.ackSoon()
	}
	c.finish(rx)
}

// NackPush refuses a push delivered by EvPush. With wire.NackRNR the peer sends it again after the
// timeout of index rnr, and on an ordered connection nothing later is delivered before; NackCIE
// (Falcon §8.5.3.5), NackNRE, NackCID and NackXLR end it with ulpCode. NackCID and NackXLR may also
// refuse a pull.
func (c *Conn) NackPush(now Time, rsn uint32, code wire.NackCode, rnr, ulpCode uint8) {
	rx := c.withULP(rsn)
	if rx == nil {
		return
	}
	if !rx.push {
		if code == wire.NackRNR {
			c.RNRPull(now, rsn, rnr)
			return
		}
		c.queueNack(nackEntry{psn: rx.psn, code: code, ulpCode: ulpCode, request: true})
		resync := wire.ResyncRemoteXLR
		if code == wire.NackCID {
			resync = wire.ResyncCID
		}
		c.refusePull(now, rx, resync)
		return
	}
	rx.nack, rx.rnr, rx.ulpCode = code, rnr, ulpCode
	if code == wire.NackRNR {
		rx.state, rx.since = rxNotReady, now+wire.RNRTimeout(rnr)
		c.holdFrom(rx)
	} else {
		rx.state, rx.since = rxRefused, now
		c.endHold(rx)
	}
	c.nackAgain(rx)
	c.watchPeer(now)
}

// refusePull ends a pull that gets no data. Its request is acknowledged, so a NACK that is lost is
// never asked for again: a Resync in the place of the Pull Data, which is retransmitted until it is
// acknowledged, tells the initiator for certain.
func (c *Conn) refusePull(now Time, rx *rxTxn, code wire.ResyncCode) {
	t := c.e.newTxn(c, TxnPullData)
	t.rsn, t.state, t.started, t.refusal = rx.rsn, pullDataUlpRx, now, true
	t.makeResync(code, CmplRemoteErr)
	c.responses++
	t.enlist(inFresh + listID(TxnPullData))
	c.e.queues[classTarget].push(c)
	c.finish(rx)
}

// nackAgain sends the NACK of a refused push.
func (c *Conn) nackAgain(rx *rxTxn) {
	c.queueNack(nackEntry{psn: rx.psn, code: rx.nack, rnr: rx.rnr, ulpCode: rx.ulpCode})
}

// finish ends a request: answered, or withdrawn by a Resync.
func (c *Conn) finish(rx *rxTxn) {
	c.endHold(rx)
	c.dropRx(rx)
	c.retire()
	c.checkDrained()
}

func (c *Conn) dropRx(rx *rxTxn) {
	c.rxs.Put(c.targetBase, rx.rsn, doneRx)
	c.requests--
	c.e.putRx(rx)
}

// retire moves targetBase over everything answered. On an ordered connection it cannot pass
// targetNext, whose request is not even delivered: deliverInOrder has gone over what a Resync
// skipped.
func (c *Conn) retire() {
	for c.rxs.Get(c.targetBase) == doneRx {
		c.rxs.Clear(c.targetBase)
		c.targetBase++
	}
}

// RespondPull answers a pull delivered by EvPull (Falcon §8.5.3.2) with length bytes, which Fill
// writes when the packet is sent. EvResponseDone with tag follows exactly once. It is never refused
// for credits: a response without waits inside. ErrTooLong: longer than requested;
// ErrNoTransaction: no such pull; ErrClosed.
func (c *Conn) RespondPull(now Time, rsn uint32, tag uint64, length int) error {
	if c.closed {
		return ErrClosed
	}
	rx := c.withULP(rsn)
	if rx == nil || rx.push {
		return ErrNoTransaction
	}
	if length < 0 || length > rx.length || length > int(c.mtu) {
		return ErrTooLong
	}
	t := c.e.newTxn(c, TxnPullData)
	t.rsn, t.tag, t.length, t.state, t.started = rsn, tag, int32(length), pullDataUlpRx, now
	c.finish(rx)
	c.responses++
	t.enlist(inStalled)
	c.startResponse(t)
	if t.in == inStalled {
		c.watchPeer(now)
	}
	return nil
}

// startResponse queues a stalled response for transmission if it can have credits. Credits are
// taken here and not when the request is delivered: requests behind it in RSN order must not wait
// for them, or two nodes whose pushes fill each other's data windows would wait for each other
// (Falcon §8.2.1.2).
func (c *Conn) startResponse(t *txn) {
	cost := credit.PullDataCost(int(t.length), c.e.cfg.CreditCell)
	switch {
	case c.take(&cost):
		t.cost = cost
	case c.hopeless(&cost):
		t.makeResync(wire.ResyncLocalXLR, CmplUlpCdtErr) // no data can ever go
	default:
		return
	}
	t.unlink()
	t.enlist(inFresh + listID(TxnPullData))
	c.e.queues[classTarget].push(c)
}

// wakeStalled starts the responses that can have credits now.
func (e *Engine) wakeStalled() {
	for t := e.stalled.First(); t != nil; {
		next := t.place.Next()
		t.conn.startResponse(t)
		t = next
	}
}

// responseDone ends a pull response.
func (c *Conn) responseDone(t *txn, code Completion) {
	c.responses--
	if !t.refusal {
		u := c.e.emit(EvResponseDone, c)
		u.ev.RSN, u.ev.Tag, u.ev.Code = t.rsn, t.tag, code
	}
	c.e.putTxn(t)
}

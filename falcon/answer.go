package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// withULP returns the request with that RSN if the ULP has it and has not answered, else nil.
func (c *transactions) withULP(rsn uint32) *rxTxn {
	rx := c.rxs.At(c.targetBase, rsn)
	if rx == nil || rx.state != rxULP {
		return nil
	}
	return rx
}

// AckPush accepts a push that EvPush delivered. Its packet is acknowledged to the peer only now
// (Falcon §6.1.1.1). An unknown RSN is ignored, because the initiator may have withdrawn the push.
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

// NackPush refuses a push that EvPush delivered. After wire.NackRNR the peer sends the push again
// when the timeout of index rnr has passed, and an ordered connection delivers nothing later before
// then. NackCIE (Falcon §8.5.3.5), NackNRE, NackCID and NackXLR end the push with ulpCode. NackCID
// and NackXLR may also refuse a pull.
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

// refusePull ends a pull that gets no data. The pull request is already acknowledged, so the
// initiator would never ask again for a lost NACK. Therefore a Resync is sent in place of the Pull
// Data; it is retransmitted until it is acknowledged.
func (c *transactions) refusePull(now Time, rx *rxTxn, code wire.ResyncCode) {
	t := c.e.contexts.newTxn(c.self(), TxnPullData)
	t.rsn, t.state, t.started, t.refusal = rx.rsn, pullDataUlpRx, now, true
	t.makeResync(code, CmplRemoteErr)
	c.responses++
	t.enlist(inFresh + listID(TxnPullData))
	c.e.schedule.queues[classTarget].push(c.self())
	c.finish(rx)
}

// finish removes a request that was answered, or that a Resync withdrew.
func (c *transactions) finish(rx *rxTxn) {
	c.endHold(rx)
	c.dropRx(rx)
	c.retire()
	c.checkDrained()
}

// RespondPull answers a pull that EvPull delivered (Falcon §8.5.3.2) with length bytes, which Fill
// writes when the packet is sent. Exactly one EvResponseDone with tag follows. RespondPull never
// fails for lack of credits: a response without credits waits inside the engine. It returns
// ErrTooLong if length is more than was requested, ErrNoTransaction if there is no such pull, and
// ErrClosed.
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
	t := c.e.contexts.newTxn(c.self(), TxnPullData)
	t.rsn, t.tag, t.length, t.state, t.started = rsn, tag, int32(length), pullDataUlpRx, now
	c.finish(rx)
	c.responses++
	t.enlist(inStalled)
	c.startResponse(t, false)
	if t.in == inStalled {
		c.watchPeer(now)
	}
	return nil
}

// startResponse queues a stalled response for transmission if it can get credits. Credits are taken
// here, and not when the request is delivered, because later requests in RSN order must not wait
// for them: two nodes whose pushes fill each other's data windows would then wait for each other
// (Falcon §8.2.1.2). again means that the credits were refused before.
func (c *transactions) startResponse(t *txn, again bool) {
	cost := credit.PullDataCost(int(t.length), c.e.cfg.CreditCell)
	switch {
	case !again && c.take(&cost), again && c.takeNow(&cost):
		t.cost = cost
	case c.hopeless(&cost):
		t.makeResync(wire.ResyncLocalXLR, CmplUlpCdtErr) // no data can ever go
	default:
		return
	}
	t.unlink()
	t.enlist(inFresh + listID(TxnPullData))
	c.e.schedule.queues[classTarget].push(c.self())
}

// RNRPull answers a pull that EvPull delivered with receiver-not-ready. The engine delivers the
// pull again after the timeout of index rnr (Falcon §8.5.3.4). The peer sees no sign of this,
// except that on an ordered connection later pushes are NACKed.
func (c *Conn) RNRPull(now Time, rsn uint32, rnr uint8) {
	rx := c.withULP(rsn)
	if rx == nil || rx.push {
		return
	}
	rx.rnr = rnr
	c.again(rx, now+wire.RNRTimeout(rnr))
	c.holdFrom(rx)
}

// DeferPull postpones a pull that EvPull delivered: the engine delivers it again at the time until.
// An ordered connection delivers nothing later before that. It is meant for a ULP that is short of
// its own resources; the peer receives no answer.
func (c *Conn) DeferPull(now Time, rsn uint32, until Time) {
	rx := c.withULP(rsn)
	if rx == nil || rx.push {
		return
	}
	c.again(rx, max(until, now))
	if !c.ordered || int32(rx.rsn-c.targetNext) >= 0 {
		return
	}
	c.targetNext = rx.rsn
	for n := range c.rxs.Capacity() {
		later := c.rxs.At(c.targetBase, rx.rsn+n) // rx itself is not ready
		if later == nil || later.state != rxQueued {
			continue
		}
		later.withdraw()
		if later.push {
			c.keep(later)
		}
	}
	c.watchPeer(now)
}

// again schedules another delivery of a pull.
func (c *transactions) again(rx *rxTxn, at Time) {
	rx.state, rx.since = rxNotReady, at
	c.e.wheel.Arm(&rx.timer, rx, timerRedeliver, at)
}

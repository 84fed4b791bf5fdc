package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// withULP finds a request the ULP has not answered yet.
func (c *transactions) withULP(rsn uint32) *rxTxn {
	rx := c.rxs.At(c.targetBase, rsn)
	if rx == nil || rx.state != rxULP {
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
func (c *transactions) refusePull(now Time, rx *rxTxn, code wire.ResyncCode) {
	t := c.e.contexts.newTxn(c.self(), TxnPullData)
	t.rsn, t.state, t.started, t.refusal = rx.rsn, pullDataUlpRx, now, true
	t.makeResync(code, CmplRemoteErr)
	c.responses++
	t.enlist(inFresh + listID(TxnPullData))
	c.e.schedule.queues[classTarget].push(c.self())
	c.finish(rx)
}

// finish ends a request: answered, or withdrawn by a Resync.
func (c *transactions) finish(rx *rxTxn) {
	c.endHold(rx)
	c.dropRx(rx)
	c.retire()
	c.checkDrained()
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

// startResponse queues a stalled response for transmission if it can have credits. Credits are
// taken here and not when the request is delivered: requests behind it in RSN order must not wait
// for them, or two nodes whose pushes fill each other's data windows would wait for each other
// (Falcon §8.2.1.2). With again they were refused before.
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

// RNRPull answers a pull delivered by EvPull with receiver-not-ready: it is delivered again after
// the timeout of index rnr (Falcon §8.5.3.4). The peer does not notice, but for the pushes behind
// it on an ordered connection.
func (c *Conn) RNRPull(now Time, rsn uint32, rnr uint8) {
	rx := c.withULP(rsn)
	if rx == nil || rx.push {
		return
	}
	rx.rnr = rnr
	c.again(rx, now+wire.RNRTimeout(rnr))
	c.holdFrom(rx)
}

// DeferPull puts a pull delivered by EvPull off: it is delivered again at the given time, and
// nothing behind it on an ordered connection before. It is for a ULP that is short of something of
// its own, and no answer to the peer.
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

// again delivers a pull once more at the given time.
func (c *transactions) again(rx *rxTxn, at Time) {
	rx.state, rx.since = rxNotReady, at
	c.e.wheel.Arm(&rx.timer, rx, timerRedeliver, at)
}

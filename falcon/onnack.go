package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/cc/rue"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// onNack processes a NACK (Falcon §9.2.4, §11).
func (c *receiver) onNack(now Time, p *Packet, n *wire.Nack) wire.Drop {
	if d := c.checkBases(n.DataBase, n.ReqBase); d != wire.DropNone {
		return d
	}
	c.e.stats.NacksReceived++
	countNack(&c.e.stats.NackCodesReceived, n.Code)
	// Find the transaction before the bases move: a pull request that the target's ULP refused is
	// acknowledged by them.
	t := c.refused(n)
	c.advanceBases(n.DataBase, n.ReqBase)
	c.delaySample(now, p, rue.TypeNack, n.T1, n.T2, &n.Congestion).NackCode = uint8(n.Code)
	c.congestion(now)
	defer c.kick()
	if !n.Code.Valid() {
		return wire.DropNackCode
	}
	if t == nil || t.conn != c.self() {
		return wire.DropNackTarget
	}
	switch n.Code {
	case wire.NackResource:
		c.onNoRoom(now, t)
	case wire.NackRNR:
		c.onRNR(now, t, n.RNR)
	case wire.NackXLR:
		c.onRefused(t, wire.ResyncRemoteXLR, CmplRemoteErr, 0)
	case wire.NackCIE:
		c.onRefused(t, wire.ResyncCIE, CmplTargetNackCIE, n.ULPCode)
	case wire.NackNRE:
		c.onRefused(t, wire.ResyncNRE, CmplTargetNackNRE, n.ULPCode)
	case wire.NackCID:
		c.onRefused(t, wire.ResyncCID, CmplTargetNackCID, n.ULPCode)
	}
	return wire.DropNone
}

// refused returns the transaction that a NACK refers to, from its window or from the pulls that
// wait for data. PSNs that the same packet acknowledges count as acknowledged.
func (c *receiver) refused(n *wire.Nack) *txn {
	w, base := &c.dataTx, n.DataBase
	if n.Request {
		w, base = &c.reqTx, n.ReqBase
	}
	t := c.packetAt(w, n.PSN)
	if !n.Request {
		if int32(n.PSN-base) < 0 {
			return nil
		}
		return t
	}
	if t != nil || n.Code == wire.NackResource || n.Code == wire.NackRNR {
		return t
	}
	for rsn := c.baseRSN; rsn != c.nextRSN; rsn++ {
		if t := c.txns.Get(rsn); t.state == pullReqAckd && t.psn == n.PSN && !t.done {
			return t
		}
	}
	return nil
}

// onNoRoom leaves a packet that the target has no room for to the retransmission timer. That
// includes a packet that the target had accepted before and then evicted.
func (c *receiver) onNoRoom(now Time, t *txn) {
	if t.in != inAnswer {
		return
	}
	t.unlink()
	t.lastSent = now
	t.enlist(inFlight)
	c.timeFlight()
}

// onRNR delays the retransmission by the larger of RTO and the timeout that the NACK asks for
// (Falcon §8.4.3.4). The NACK proves that the peer is alive.
func (c *receiver) onRNR(now Time, t *txn, index uint8) {
	if t.kind != TxnPush || t.resync != 0 {
		return
	}
	t.unlink()
	c.uncountAgain(t)
	c.parkAll(t)
	t.rnr, t.rnred = true, true
	t.retries, t.firstSent, c.lastRNR = 0, now, now
	c.e.wheel.Arm(&t.timer, t, timerRNR, now+max(c.rto(), wire.RNRTimeout(index)))
	if !t.done {
		u := c.emit(EvRNR)
		u.ev.RSN, u.ev.Tag = t.rsn, t.tag
	}
}

// parkAll releases the credits of a push that the peer's receiver was not ready for. On an ordered
// connection it also parks what waits behind the first such push: pulls whose request is
// acknowledged, and transactions that were not sent.
func (c *receiver) parkAll(t *txn) {
	if c.parked == 0 {
		c.parkRSN = t.rsn
	}
	c.park(t)
	if !c.ordered || int32(t.rsn-c.parkRSN) > 0 {
		return
	}
	c.parkRSN = t.rsn
	for rsn := t.rsn + 1; rsn != c.nextRSN; rsn++ {
		if later := c.txns.Get(rsn); !later.done && (later.state == pullReqAckd || later.firstSent < 0 && later.in != inNone) {
			c.park(later)
		}
	}
}

// onRefused ends a transaction that the target does not accept. A Resync fills the hole, and when
// it is acknowledged the transaction completes (Falcon §8.4.3.5). A pull whose request is
// acknowledged leaves no hole and completes at once.
func (c *receiver) onRefused(t *txn, code wire.ResyncCode, completion Completion, ulpCode uint8) {
	if t.resync != 0 || t.done {
		return
	}
	t.ulpCode = ulpCode
	if t.packetDone {
		c.complete(t, completion)
		return
	}
	c.resync(t, code, completion)
}

package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/cc/rue"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

func (c *delivery) onFlightTimer(now Time) {
	for t := c.flight().First(); t != nil && t.lastSent+c.rto() <= now; t = c.flight().First() {
		c.onTimeout(now, t)
	}
	for t := c.answers().First(); t != nil && t.received+c.e.profile.AnswerTimeout <= now; t = c.answers().First() {
		c.onAnswerTimeout(now, t)
	}
	c.findLost(now)
	if c.probeDue() <= now {
		c.probe(now)
	}
	c.timeFlight()
}

// onTimeout handles a packet in flight that was not acknowledged in time (Falcon §9.1.5, §11).
func (c *delivery) onTimeout(now Time, t *txn) {
	c.e.stats.TimeoutRetransmits++
	if c.exhausted(now, t) {
		return
	}
	t.why = whyTimeout
	c.e.rate.ev = rue.Event{Type: rue.TypeRetransmit, RetransmitCount: uint8(min(t.retries, maxRetransmitCount))}
	c.congestion(now)
	c.sendLater(t)
}

// onAnswerTimeout sends a push again that the peer has received; the answer, perhaps a NACK, may be
// lost. This is no sign of congestion.
func (c *delivery) onAnswerTimeout(now Time, t *txn) {
	c.e.stats.AnswerTimeouts++
	if !c.exhausted(now, t) {
		t.why = whyAnswer
		c.sendLater(t)
	}
}

// exhausted counts a timeout of a packet. After too many it gives the packet up and returns true.
func (c *delivery) exhausted(now Time, t *txn) bool {
	t.retries++
	p := &c.e.profile
	limit := c.cfg.GiveUp
	if t.resync != 0 {
		limit = p.ResyncGiveUp
	}
	since := max(t.firstSent, c.lastRNR) // a peer that is not ready is alive
	if (p.MaxRetransmits == 0 || limit == Forever || int(t.retries) <= p.MaxRetransmits) && (limit == 0 || now-since < limit) {
		return false
	}
	if t.resync != 0 {
		c.fail()
	} else {
		c.resync(t, wire.ResyncRetransmit, CmplLocalTO)
	}
	return true
}

// maxRetransmitCount is the saturation value of the retransmission count in the RUE's event, a
// field of 3 bits (Falcon §10.6.2.1).
const maxRetransmitCount = 6

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

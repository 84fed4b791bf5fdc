package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// delivery is the packets under way: acknowledged, sent again or given up, and the rate they go at.
type delivery struct {
	outcome

	heard  heard // what the acknowledgements say about when packets arrive
	probes uint8 // tail loss probes since the peer was last heard of
	lively Time  // an acknowledgement was received, or a probe sent
}

// heard is what acknowledgements say about when packets arrive.
type heard struct {
	sent Time // when the newest packet that arrived was sent
	lag  Time // how much later that was known

	reorder uint8 // quarters of an RTT by which packets may overtake each other
	needed  uint8 // early retransmissions since the last that was not needed
}

func (c *delivery) rto() Time { return max(fromFU(c.cc.RTO), 1) }

// reorder is how much later another packet may be sent and arrive before, and this one not be lost.
// It grows while packets are sent again early that were only overtaken.
func (c *delivery) reorder() Time {
	return max(fromFU(c.cc.RTT)*Time(c.heard.reorder)/4, c.e.profile.ReorderTime)
}

// maxReorder is a whole RTT; after needEarly early retransmissions that were needed overtaking
// counts as over.
const (
	maxReorder = 4
	needEarly  = 64
)

// timeFlight arms the timer of the packets in flight and of those that wait for an answer. A
// deadline that moved away is found out when the timer fires.
func (c *delivery) timeFlight() {
	at := c.flightDue()
	if at != never && (!c.flightTimer.Armed() || at < c.e.wheel.At(c.flightTimer)) {
		c.e.wheel.Arm(&c.flightTimer, c.self(), timerFlight, at)
	}
}

// flightDue is when the next of them must be looked at. All packets in flight have the same
// timeout, the one now in force, and are in the order they were sent in: the first is due first.
func (c *delivery) flightDue() Time {
	at := never
	if t := c.answers().First(); t != nil {
		at = t.received + c.e.profile.AnswerTimeout
	}
	if t := c.flight().First(); t != nil {
		at = min(at, t.lastSent+c.rto(), c.lossDue())
	}
	return min(at, c.probeDue())
}

// lossDue is when the packet in flight that was sent longest ago counts as lost, if one sent later
// has arrived.
func (c *delivery) lossDue() Time {
	for t := c.flight().First(); c.e.profile.RACK && t != nil && t.lastSent < c.heard.sent; t = t.place.Next() {
		if t.early < c.e.profile.EarlyLimit {
			return t.lastSent + c.heard.lag + c.reorder()
		}
	}
	return never
}

// probeDue is when a tail loss probe goes: two RTTs after the last sign of life in either
// direction, and after a probe later and later. Packets that only wait for an answer count too: the
// acknowledgement that has it may be lost. While the window is below one packet the gap between
// packets is added, as to the retransmission timeout.
func (c *delivery) probeDue() Time {
	p := &c.e.profile
	t := c.flight().Last()
	if t == nil {
		t = c.answers().Last()
	}
	if p.Probe == ProbeNone || t == nil {
		return never
	}
	wait := max(2*fromFU(c.cc.RTT), p.ProbeTime) + Time(c.ipg)*cc.TUNanos
	return max(t.lastSent, c.lively) + wait<<c.probes
}

// sendLater queues a packet in flight for retransmission.
func (c *delivery) sendLater(t *txn) {
	c.e.wheel.Stop(&t.timer)
	c.uncountAgain(t)
	if t.in == inNone || t.in == inFlight || t.in == inAnswer {
		t.unlink()
		t.enlistByPSN(inRetx + listID(t.kind))
	}
	c.kick()
}

func (c *delivery) uncountAgain(t *txn) {
	if t.again {
		t.again = false
		c.window(t.kind).retransmitted--
	}
}

// makeResync turns the packet of t into a Resync (Falcon §9.1.8); its retransmission counters start
// anew.
func (t *txn) makeResync(code wire.ResyncCode, completion Completion) {
	t.resync, t.code = code, completion
	t.retries, t.firstSent, t.early, t.rnr = 0, -1, 0, false
}

// resync replaces the packet of t, which was sent, by a Resync with the same PSN and RSN.
func (c *delivery) resync(t *txn, code wire.ResyncCode, completion Completion) {
	t.makeResync(code, completion)
	c.sendLater(t)
}

// txnTimeout is the time since a transaction was first sent at which it completes with CmplLocalTO,
// 0 = never.
func (c *delivery) txnTimeout() Time {
	if limit := c.e.profile.TxnTimeout; limit > 0 && c.cfg.GiveUp != Forever {
		return max(limit, c.cfg.GiveUp)
	}
	return 0
}

// timeTxn starts the timer of the transactions if a first one was sent.
func (c *delivery) timeTxn(now Time) {
	if limit := c.txnTimeout(); limit > 0 && !c.txnTimer.Armed() {
		c.e.wheel.Arm(&c.txnTimer, c.self(), timerTxn, now+limit)
	}
}

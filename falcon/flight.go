package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// delivery tracks the packets in flight: it acknowledges them, retransmits them, gives them up, and
// controls their rate.
type delivery struct {
	outcome

	heard  heard // arrival times learnt from acknowledgements
	probes uint8 // tail loss probes since the last acknowledgement
	lively Time  // when an acknowledgement was last received, or a probe sent
}

// heard holds what acknowledgements say about when packets arrive.
type heard struct {
	sent Time // when the newest packet that arrived was sent
	lag  Time // time from then until its acknowledgement

	reorder uint8 // quarters of an RTT by which packets may overtake each other
	needed  uint8 // needed early retransmissions since the last one that was not needed
}

func (c *delivery) rto() Time { return max(fromFU(c.cc.RTO), 1) }

// reorder returns by how much a packet may be overtaken by packets sent later before it counts as
// lost. It grows when an early retransmission turns out to be for a packet that was only overtaken.
func (c *delivery) reorder() Time {
	return max(fromFU(c.cc.RTT)*Time(c.heard.reorder)/4, c.e.profile.ReorderTime)
}

// maxReorder is a whole RTT. After needEarly early retransmissions that were needed, reordering
// counts as over.
const (
	maxReorder = 4
	needEarly  = 64
)

// timeFlight arms the timer of the packets in flight and of those that wait for an answer. If the
// deadline moves to a later time, the timer still fires at the earlier one and is then armed anew.
func (c *delivery) timeFlight() {
	at := c.flightDue()
	if at != never && (!c.flightTimer.Armed() || at < c.e.wheel.At(c.flightTimer)) {
		c.e.wheel.Arm(&c.flightTimer, c.self(), timerFlight, at)
	}
}

// flightDue returns when the next of these packets must be examined. All packets in flight have the
// same timeout, the current one, and are in the order of sending, so the first is due first.
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

// lossDue returns when the packet that was sent longest ago counts as lost, if one sent later has
// arrived.
func (c *delivery) lossDue() Time {
	for t := c.flight().First(); c.e.profile.RACK && t != nil && t.lastSent < c.heard.sent; t = t.place.Next() {
		if t.early < c.e.profile.EarlyLimit {
			return t.lastSent + c.heard.lag + c.reorder()
		}
	}
	return never
}

// probeDue returns when a tail loss probe is sent: two RTTs after the last packet was sent or
// acknowledgement received; each further probe doubles the wait. Packets that only wait for an
// answer count too, because the acknowledgement with that answer may be lost. While the window is
// below one packet, the gap between packets is added, as it is to the retransmission timeout.
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

// makeResync turns the packet of t into a Resync (Falcon §9.1.8) and resets its retransmission
// counters.
func (t *txn) makeResync(code wire.ResyncCode, completion Completion) {
	t.resync, t.code = code, completion
	t.retries, t.firstSent, t.early, t.rnr = 0, -1, 0, false
}

// resync replaces the packet of t, which was sent, with a Resync of the same PSN and RSN.
func (c *delivery) resync(t *txn, code wire.ResyncCode, completion Completion) {
	t.makeResync(code, completion)
	c.sendLater(t)
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

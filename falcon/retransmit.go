package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/cc/rue"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// timeFlight arms the timer of the packets in flight and of those that wait for an answer. A
// deadline that moved away is found out when the timer fires.
func (c *Conn) timeFlight() {
	at := c.flightDue()
	if at != never && (!c.flightTimer.Armed() || at < c.e.wheel.At(c.flightTimer)) {
		c.e.wheel.Arm(&c.flightTimer, c, timerFlight, at)
	}
}

// flightDue is when the next of them must be looked at. All packets in flight have the same
// timeout, the one now in force, and are in the order they were sent in: the first is due first.
func (c *Conn) flightDue() Time {
	at := never
	if t := c.answers().First(); t != nil {
		at = t.received + c.e.profile.AnswerTimeout
	}
	if t := c.flight().First(); t != nil {
		at = min(at, t.lastSent+c.rto(), c.lossDue())
	}
	return min(at, c.probeDue())
}

func (c *Conn) onFlightTimer(now Time) {
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

// expired implements timerOwner: the delay of an RNR NACK ends.
func (t *txn) expired(Time, timer.Kind) {
	t.rnr = false
	t.conn.sendLater(t)
}

// onTimeout handles a packet in flight that was not acknowledged in time (Falcon §9.1.5, §11).
func (c *Conn) onTimeout(now Time, t *txn) {
	c.e.stats.TimeoutRetransmits++
	if c.exhausted(now, t) {
		return
	}
	t.why = whyTimeout
	c.e.rate.ev = rue.Event{Type: rue.TypeRetransmit, RetransmitCount: uint8(min(t.retries, maxRetransmitCount))}
	c.congestion(now)
	c.sendLater(t)
}

// onAnswerTimeout sends a push again that the peer has, and whose answer, a NACK perhaps, may be
// lost. That says nothing about congestion.
func (c *Conn) onAnswerTimeout(now Time, t *txn) {
	c.e.stats.AnswerTimeouts++
	if !c.exhausted(now, t) {
		t.why = whyAnswer
		c.sendLater(t)
	}
}

// exhausted counts a timeout of a packet and gives it up after too many.
func (c *Conn) exhausted(now Time, t *txn) bool {
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

// maxRetransmitCount is where the count of the RUE's event saturates, in a field of 3 bits (Falcon
// §10.6.2.1).
const maxRetransmitCount = 6

// sendLater queues a packet in flight for retransmission.
func (c *Conn) sendLater(t *txn) {
	c.e.wheel.Stop(&t.timer)
	c.uncountAgain(t)
	if t.in == inNone || t.in == inFlight || t.in == inAnswer {
		t.unlink()
		t.enlistByPSN(inRetx + listID(t.kind))
	}
	c.kick()
}

func (c *Conn) uncountAgain(t *txn) {
	if t.again {
		t.again = false
		c.window(t.kind).retransmitted--
	}
}

package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/cc/rue"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// timeFlight arms the timer of the packets in flight. All have the same timeout, the one now in force, and are in the
// order they were sent in: the first is due first. A deadline that moved away is found out when the timer fires.
func (c *Conn) timeFlight() {
	if c.flight().empty() {
		return
	}
	if at := c.flight().head.lastSent + c.rto(); !c.flightTimer.armed() || at < c.e.wheel.at(c.flightTimer) {
		c.e.wheel.arm(&c.flightTimer, c, timerFlight, at)
	}
}

func (c *Conn) onFlightTimer(now Time) {
	for t := c.flight().head; t != nil && t.lastSent+c.rto() <= now; t = c.flight().head {
		c.onTimeout(now, t)
	}
	c.timeFlight()
}

// expired implements timerOwner: the delay of an RNR NACK ends.
func (t *txn) expired(Time, timerKind) {
	t.rnr = false
	t.conn.sendLater(t)
}

// onTimeout handles a packet in flight that was not acknowledged in time (Falcon §9.1.5, §11).
func (c *Conn) onTimeout(now Time, t *txn) {
	t.retries++
	c.e.stats.TimeoutRetransmits++
	p := &c.e.profile
	limit := c.cfg.GiveUp
	if t.resync != 0 {
		limit = p.ResyncGiveUp
	}
	since := max(t.firstSent, c.lastRNR) // a peer that is not ready is alive
	if p.MaxRetransmits > 0 && limit != Forever && t.retries > p.MaxRetransmits || limit > 0 && now-since >= limit {
		if t.resync != 0 {
			c.fail()
			return
		}
		c.resync(t, wire.ResyncRetransmit, CmplLocalTO)
		return
	}
	c.e.rate.ev = rue.Event{Type: rue.TypeRetransmit, RetransmitCount: uint8(min(t.retries, maxRetransmitCount))}
	c.congestion(now)
	c.sendLater(t)
}

// maxRetransmitCount is where the count of the RUE's event saturates, in a field of 3 bits (Falcon §10.6.2.1).
const maxRetransmitCount = 6

// sendLater queues a packet in flight for retransmission.
func (c *Conn) sendLater(t *txn) {
	c.e.wheel.stop(&t.timer)
	c.uncountAgain(t)
	if t.in == inNone || t.in == inFlight {
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

// recoverLosses is early retransmission (Falcon §9.1.4) for one window of an EACK: rx says what was received from base
// on. It reports whether the bitmap shows a loss.
func (c *Conn) recoverLosses(now Time, w *txWindow, base uint32, rx *wire.Bitmap128, own bool, slack uint32) (lost bool) {
	rtt := fromFU(c.cc.RTT)
	for n := range c.lossLimit(rx) {
		if bit(rx, uint32(n)) {
			continue
		}
		t := c.packetAt(w, base+uint32(n))
		if t == nil || t.rnr {
			continue
		}
		lost = true
		if t.lastSent+rtt >= now {
			break // later packets are more recent still
		}
		c.sendEarly(t)
	}
	if own {
		c.recoverOutside(now, w, base, rx, rtt)
		w.paused = w.next-w.base > slack
	}
	return lost
}

// lossLimit is the first index that does not count as lost when it is missing: too close to the highest one received
// and, if the profile counts, with too few received behind it.
func (c *Conn) lossLimit(rx *wire.Bitmap128) int {
	p := &c.e.profile
	limit := highest(rx) - int(p.OOODistance) + 1
	if p.OOOCount > 0 {
		limit = max(limit, nthHighest(rx, p.OOOCount))
	}
	return limit
}

// recoverOutside answers an out-of-window notification: everything not known as received and not sent within an RTT goes
// again; the first notification within an RTO does not wait for the RTT.
func (c *Conn) recoverOutside(now Time, w *txWindow, base uint32, rx *wire.Bitmap128, rtt Time) {
	for psn := w.base; psn != w.next; psn++ {
		t := c.packetAt(w, psn)
		if t == nil || t.rnr || bit(rx, psn-base) {
			continue
		}
		if t.lastSent+rtt >= now && t.bypassed >= 0 && t.bypassed+c.rto() > now {
			continue
		}
		t.bypassed = now
		c.sendEarly(t)
	}
}

func (c *Conn) sendEarly(t *txn) {
	if t.in != inFlight || t.early >= c.e.profile.EarlyLimit {
		return
	}
	t.early++
	c.e.stats.EarlyRetransmits++
	c.sendLater(t)
}

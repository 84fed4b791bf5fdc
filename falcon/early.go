package falcon

import "github.com/falcon-vnic/vnic/falcon/wire"

// recoverLosses is early retransmission (Falcon §9.1.4) for one window of an EACK: rx says what was
// received from base on. It reports whether the bitmap shows a loss.
func (c *delivery) recoverLosses(now Time, w *txWindow, base uint32, rx *wire.Bitmap128, own bool) (lost bool) {
	rtt := fromFU(c.cc.RTT)
	lost = c.recoverHoles(now, w, base, rx, rtt)
	if own {
		c.recoverOutside(now, w, base, rx, rtt)
		w.paused = true // until maySend finds few enough in flight
	}
	return lost
}

// recoverHoles sends again what is missing far enough below what was received, and was not sent
// within an RTT. Unless the profile says otherwise it stops at the first packet that was: later
// ones are as recent, or were sent again as it was.
func (c *delivery) recoverHoles(now Time, w *txWindow, base uint32, rx *wire.Bitmap128, rtt Time) (lost bool) {
	for n := range c.lossLimit(rx) {
		if bit(rx, uint32(n)) {
			continue
		}
		t := c.packetAt(w, base+uint32(n))
		if t == nil || t.rnr {
			continue
		}
		lost = true
		if t.lastSent+rtt < now {
			c.sendEarly(t)
		} else if !c.e.profile.ScanAll {
			break
		}
	}
	return lost
}

// lossLimit is the first index that does not count as lost when it is missing: too close to the
// highest one received and, if the profile counts, with too few received behind it.
func (c *delivery) lossLimit(rx *wire.Bitmap128) int {
	p := &c.e.profile
	limit := highest(rx) - int(p.OOODistance) + 1
	if p.OOOCount > 0 {
		limit = max(limit, nthHighest(rx, p.OOOCount))
	}
	return limit
}

// recoverOutside answers an out-of-window notification: everything not known as received and not
// sent within an RTT goes again. If the profile says so the first notification within an RTO does
// not wait for the RTT.
func (c *delivery) recoverOutside(now Time, w *txWindow, base uint32, rx *wire.Bitmap128, rtt Time) {
	for psn := w.base; psn != w.next; psn++ {
		t := c.packetAt(w, psn)
		if t == nil || t.rnr || bit(rx, psn-base) {
			continue
		}
		bypass := c.e.profile.OWNBypass && (t.bypassed < 0 || t.bypassed+c.rto() <= now)
		if t.lastSent+rtt >= now && !bypass {
			continue
		}
		t.bypassed = now
		c.sendEarly(t)
	}
}

func (c *delivery) sendEarly(t *txn) {
	if t.in != inFlight || t.early >= c.e.profile.EarlyLimit {
		return
	}
	t.early++
	t.why = whyEarly
	c.e.stats.EarlyRetransmits++
	c.sendLater(t)
}

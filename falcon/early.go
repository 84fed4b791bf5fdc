package falcon

import "github.com/falcon-vnic/vnic/falcon/wire"

// recoverLosses performs early retransmission (Falcon §9.1.4) for one window of an EACK. rx holds
// what the peer received from base on. It reports whether the bitmap shows a loss.
func (c *delivery) recoverLosses(now Time, w *txWindow, base uint32, rx *wire.Bitmap128, own bool) (lost bool) {
	rtt := fromFU(c.cc.RTT)
	lost = c.recoverHoles(now, w, base, rx, rtt)
	if own {
		c.recoverOutside(now, w, base, rx, rtt)
		w.paused = true // until maySend finds few enough packets in flight
	}
	return lost
}

// recoverHoles sends packets again that are missing far enough below the highest one received, if
// they were not sent within an RTT. At the first packet sent within an RTT it stops, unless
// Profile.ScanAll is set: later ones were sent as recently, or were sent again together with it.
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

// lossLimit returns the first index at which a missing packet does not count as lost: it is too
// close to the highest one received and, with Profile.OOOCount, too few behind it were received.
func (c *delivery) lossLimit(rx *wire.Bitmap128) int {
	p := &c.e.profile
	limit := highest(rx) - int(p.OOODistance) + 1
	if p.OOOCount > 0 {
		limit = max(limit, nthHighest(rx, p.OOOCount))
	}
	return limit
}

// recoverOutside handles an out-of-window notification. It sends every packet again that is not
// known as received and was not sent within an RTT. With Profile.OWNBypass the first notification
// within an RTO does not wait for the RTT.
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

package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// onRetransmitTimer handles a packet that was not acknowledged in time, or whose RNR delay is over (Falcon §9.1.5, §11).
func (c *Conn) onRetransmitTimer(now Time, t *txn) {
	if t.rnr {
		t.rnr = false
		c.sendLater(t)
		return
	}
	t.retries++
	c.e.stats.TimeoutRetransmits++
	p := &c.e.profile
	limit := c.cfg.GiveUp
	if t.resync != 0 {
		limit = p.ResyncGiveUp
	}
	if p.MaxRetransmits > 0 && t.retries > p.MaxRetransmits || limit > 0 && now-t.firstSent >= limit {
		if t.resync != 0 {
			c.fail()
			return
		}
		c.resync(t, wire.ResyncRetransmit, CmplLocalTO)
		return
	}
	c.e.ccEvent = cc.Event{Kind: cc.Retransmit, RetransmitCount: uint8(min(t.retries, maxRetransmitCount)), Now: FalconTime(now)}
	c.congestion()
	c.sendLater(t)
}

// maxRetransmitCount is where the 3-bit count of the congestion event saturates.
const maxRetransmitCount = 7

// sendLater queues a packet in flight for retransmission.
func (c *Conn) sendLater(t *txn) {
	c.e.wheel.stop(&t.timer)
	c.uncountAgain(t)
	if t.list == nil {
		c.retx[t.kind].insertByPSN(t)
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
	for n := range highest(rx) - int(c.e.profile.OOODistance) + 1 {
		if bit(rx, uint32(n)) {
			continue
		}
		t := w.at(base + uint32(n))
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

// recoverOutside answers an out-of-window notification: everything not known as received and not sent within an RTT goes
// again; the first notification within an RTO does not wait for the RTT.
func (c *Conn) recoverOutside(now Time, w *txWindow, base uint32, rx *wire.Bitmap128, rtt Time) {
	for psn := w.base; psn != w.next; psn++ {
		t := w.at(psn)
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
	if t.list != nil || t.early >= c.e.profile.EarlyLimit {
		return
	}
	t.early++
	c.e.stats.EarlyRetransmits++
	c.sendLater(t)
}

// congestion gives e.ccEvent to the algorithm and applies its result.
func (c *Conn) congestion() {
	r := c.e.profile.CC.Update(&c.cc, &c.e.ccEvent)
	c.ipg = Time(r.IPG) * cc.TUNanos
	if r.Repath {
		c.path++
		c.e.stats.Repaths++
	}
}

package falcon

import "github.com/falcon-vnic/vnic/falcon/wire"

// What a peer makes the target hold is limited in two ways: by how much one connection may hold
// (contexts in admit.go, cells in cells.go), and by how long the peer may leave it waiting (Falcon
// §6.4, §11: soft state, reclaimed by timeouts on both sides).

// onReclaimTimer gives up what the peer left waiting for too long, and arms the timer for the next
// item that may become too old.
func (c *transactions) onReclaimTimer(now Time) {
	limit := c.e.profile.RxTimeout
	next := Time(-1)
	overdue := func(since Time) bool {
		if since+limit <= now {
			return true
		}
		if next < 0 || since < next {
			next = since
		}
		return false
	}
	orderSince := c.waitingSince(now)
	for rx := range c.rxs.All() {
		switch {
		case rx.state == rxWaiting && overdue(max(rx.since, orderSince)), rx.state == rxNotReady && rx.push && overdue(rx.since):
			c.reclaim(now, rx)
		case rx.state == rxRefused && overdue(rx.since):
			c.e.stats.Reclaimed++
			c.dropRx(rx) // its PSN stays received: the push must not reach the ULP again
		}
	}
	for t := c.e.waiting.stalled.First(); t != nil; {
		after := t.place.Next()
		if t.conn == c.self() && overdue(t.started) {
			t.unlink()
			c.e.stats.Reclaimed++
			c.responseDone(t, CmplLocalTO)
		}
		t = after
	}
	c.retire()
	c.checkDrained()
	if next >= 0 {
		c.e.wheel.Arm(&c.reclaimTimer, c.self(), timerReclaim, next+limit)
	}
}

// waitingSince returns since when the order of the connection has waited for the same request. A
// request that was NACKed with RNR, and is sent again, is no reason to give up those behind it.
func (c *transactions) waitingSince(now Time) Time {
	moved := c.reclaimNext != c.targetNext
	c.reclaimNext = c.targetNext
	if moved {
		return now
	}
	if head := c.rxs.At(c.targetBase, c.targetNext); head != nil && head != doneRx {
		return head.since
	}
	return longAgo
}

// reclaim gives up a waiting request. A push is forgotten: it is not acknowledged, so its initiator
// still has it. A pull is acknowledged, so a Resync informs its initiator; if the peer does not
// acknowledge even that, the connection ends.
func (c *transactions) reclaim(now Time, rx *rxTxn) {
	c.e.stats.Reclaimed++
	if rx.push {
		c.forget(rx)
		return
	}
	c.refusePull(now, rx, wire.ResyncTimeout)
}

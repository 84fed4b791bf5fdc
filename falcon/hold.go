package falcon

import "github.com/falcon-vnic/vnic/falcon/wire"

// An ordered connection stops at a request that the ULP does not take now, in one of two ways. One
// it was not ready for holds the connection: it and all later pushes are NACKed until the ULP
// accepts it (Falcon §8.5.3.4). One it puts off, a pull, only makes the later ones wait, as they
// would for a packet that is late. Either way targetNext is its RSN.

// holdFrom holds the connection at a request the ULP was not ready for, now or again. Of the later
// ones pushes are NACKed too; pulls, already acknowledged, wait.
func (c *outcome) holdFrom(rx *rxTxn) {
	if !c.ordered || int32(rx.rsn-c.targetNext) > 0 || rx.rsn == c.targetNext && !c.hold {
		return
	}
	c.targetNext, c.hold, c.holdRNR = rx.rsn, true, rx.rnr
	for n := range c.rxs.Capacity() {
		later := c.rxs.At(c.targetBase, rx.rsn+n) // rx itself is not ready
		if later == nil || later.state != rxQueued && later.state != rxWaiting {
			continue
		}
		later.withdraw()
		if later.push {
			later.dropPayload()
			later.state, later.nack, later.rnr, later.since = rxNotReady, wire.NackRNR, rx.rnr, rx.since
			c.nackAgain(later)
		}
	}
}

// endHold goes on with what waits behind rx, if that held the connection, now that the ULP answered
// it for good.
func (c *outcome) endHold(rx *rxTxn) {
	if c.hold && rx.rsn == c.targetNext {
		c.hold = false
		c.targetNext++
		c.deliverInOrder()
	}
}

// refusesLater reports whether pushes behind the one that holds the connection are NACKed. While
// the ULP has that one again they wait for its answer: it came with them, as a rule, and they would
// lose another timeout (TestTheHeldWaitWhileTheULPDecides).
func (c *outcome) refusesLater() bool {
	if !c.hold || c.e.profile.NackHeld {
		return c.hold
	}
	head := c.rxs.At(c.targetBase, c.targetNext)
	return head == nil || head.state != rxQueued && head.state != rxULP
}

// nackAgain sends the NACK of a refused push.
func (c *outcome) nackAgain(rx *rxTxn) {
	c.queueNack(nackEntry{psn: rx.psn, code: rx.nack, rnr: rx.rnr, ulpCode: rx.ulpCode})
}

// keep copies the payload of a push that was withdrawn from the receive buffer. One without room
// comes again.
func (c *outcome) keep(rx *rxTxn) {
	k := rx.cell
	if k == nil && !c.copyPayload(&k, rx.data) {
		c.refuseResource(rx.psn, false)
		c.forget(rx)
		return
	}
	rx.wait(k)
}

package falcon

import "github.com/falcon-vnic/vnic/falcon/wire"

// An ordered connection stops at a request that the ULP does not take now, in one of two ways. If
// the ULP was not ready (RNR), the request holds the connection: the request and all later pushes
// are NACKed until the ULP accepts it (Falcon §8.5.3.4). If the ULP defers the request, which must
// be a pull, later requests only wait, as they would for a late packet. Either way targetNext is
// the RSN of the request.

// holdFrom holds the connection at a request that the ULP was not ready for, for the first time or
// once more. Later pushes are NACKed too. Later pulls are already acknowledged and wait.
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

// endHold continues behind rx, if rx held the connection, now that the ULP has given its final
// answer to it.
func (c *outcome) endHold(rx *rxTxn) {
	if c.hold && rx.rsn == c.targetNext {
		c.hold = false
		c.targetNext++
		c.deliverInOrder()
	}
}

// refusesLater reports whether pushes behind the request that holds the connection are NACKed.
// While the ULP has that request again, later pushes wait for its answer: they usually arrived
// together with it, and a NACK would cost them another timeout (TestTheHeldWaitWhileTheULPDecides).
func (c *outcome) refusesLater() bool {
	if !c.hold || c.e.profile.NackHeld {
		return c.hold
	}
	head := c.rxs.At(c.targetBase, c.targetNext)
	return head == nil || head.state != rxQueued && head.state != rxULP
}

// nackAgain queues the NACK of a refused push.
func (c *outcome) nackAgain(rx *rxTxn) {
	c.queueNack(nackEntry{psn: rx.psn, code: rx.nack, rnr: rx.rnr, ulpCode: rx.ulpCode})
}

// keep copies the payload of a withdrawn push out of the receive buffer. If there is no room, the
// push is forgotten and the peer sends it again.
func (c *outcome) keep(rx *rxTxn) {
	k := rx.cell
	if k == nil && !c.copyPayload(&k, rx.data) {
		c.refuseResource(rx.psn, false)
		c.forget(rx)
		return
	}
	rx.wait(k)
}

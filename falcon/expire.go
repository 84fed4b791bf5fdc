package falcon

import "github.com/falcon-vnic/vnic/internal/timer"

// Deadline returns the time at which Advance must be called next, math.MaxInt64 if no timer runs.
// It is never later than the next timer. If it is earlier, then by less than the time to that
// timer.
func (e *Engine) Deadline() Time { return e.wheel.Deadline() }

// Advance runs all timers that are due. Afterwards Transmit may have packets and Next events.
func (e *Engine) Advance(now Time) {
	for owner, kind, ok := e.wheel.Expire(now); ok; owner, kind, ok = e.wheel.Expire(now) {
		owner.expired(now, kind)
	}
}

// expired implements timerOwner.
func (c *Conn) expired(now Time, kind timer.Kind) {
	switch kind {
	case timerFlight:
		c.onFlightTimer(now)
	case timerPace:
		c.kick()
	case timerTxn:
		c.onTxnTimer(now)
	case timerAck:
		c.ackSoon()
	case timerReclaim:
		c.onReclaimTimer(now)
	}
}

// expired implements timerOwner: the delay of an RNR NACK ends.
func (t *txn) expired(Time, timer.Kind) {
	t.rnr = false
	t.conn.sendLater(t)
}

// expired implements timerOwner: the delay of a pull ends.
func (rx *rxTxn) expired(Time, timer.Kind) { rx.conn.redeliver(rx) }

// FlushAcks queues every coalesced acknowledgement for the next Transmit. It is for an owner that
// is about to sleep.
func (e *Engine) FlushAcks(now Time) {
	for owner, ok := e.wheel.Flush(); ok; owner, ok = e.wheel.Flush() {
		owner.expired(now, timerAck)
	}
}

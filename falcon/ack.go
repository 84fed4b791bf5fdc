package falcon

import "github.com/falcon-vnic/vnic/falcon/wire"

// Weights of received packets in the coalescing count: a push counts one half when received and one half when the ULP
// acknowledges it, everything else counts whole when received.
const (
	halfPacket  = 1
	wholePacket = 2
)

// coalesce counts something to acknowledge: an ACK goes when enough came together or time is up (Falcon §9.1.6).
func (c *Conn) coalesce(now Time, weight int) {
	c.ackCount += weight
	if c.ackCount >= wholePacket*c.e.profile.AckCount {
		c.ackSoon()
		return
	}
	if c.ackNow || c.ackTimer.armed() {
		return
	}
	e := c.e
	e.wheel.arm(&c.ackTimer, now+e.profile.AckTimeout)
	c.ackNext, c.ackPrev = e.ackPending, nil
	if c.ackNext != nil {
		c.ackNext.ackPrev = c
	}
	e.ackPending = c
	c.inAckList = true
}

func (c *Conn) stopAckTimer() {
	e := c.e
	e.wheel.stop(&c.ackTimer)
	if !c.inAckList {
		return
	}
	c.inAckList = false
	if c.ackPrev != nil {
		c.ackPrev.ackNext = c.ackNext
	} else {
		e.ackPending = c.ackNext
	}
	if c.ackNext != nil {
		c.ackNext.ackPrev = c.ackPrev
	}
	c.ackNext, c.ackPrev = nil, nil
}

// ackSoon queues an ACK for the next Transmit.
func (c *Conn) ackSoon() {
	if c.closed {
		return
	}
	c.stopAckTimer()
	c.ackNow = true
	c.e.queues[classAck].push(c)
}

// FlushAcks queues every coalesced acknowledgement for the next Transmit: for an owner that is about to sleep.
func (e *Engine) FlushAcks(now Time) {
	for e.ackPending != nil {
		e.ackPending.ackSoon()
	}
}

// piggybacked notes that a packet with the current bases left. If they say everything, no timer is needed; an ACK that
// is due anyway stays due, since only it carries timestamps.
func (c *Conn) piggybacked() {
	if isZero(&c.reqRx.ack) && isZero(&c.dataRx.ack) && isZero(&c.dataRx.rx) && !c.reqRx.own && !c.dataRx.own {
		c.stopAckTimer()
		c.ackCount = 0
	}
}

// sendAck writes a NACK if one waits, else the ACK.
func (c *Conn) sendAck(now Time, dst []byte) int {
	if len(dst) < wire.EACKLen {
		return 0
	}
	if len(c.nacks) > 0 {
		return c.sendNack(dst)
	}
	if !c.ackNow {
		return 0
	}
	a := wire.Ack{
		CID: c.cfg.RemoteCID, DataBase: c.dataRx.base, ReqBase: c.reqRx.base, T1: c.lastT1, T2: c.lastT2,
		Congestion: c.congestionInfo(), DataOWN: c.dataRx.own, ReqOWN: c.reqRx.own,
	}
	if c.needsExtended() {
		a.Extended = true
		a.DataAck, a.DataRx, a.Req = c.dataRx.ack, c.dataRx.rx, c.reqRx.ack.Lo
		c.dataRx.own, c.reqRx.own = false, false
		c.e.stats.ExtendedAcksSent++
	}
	c.e.stats.AcksSent++
	c.ackNow, c.ackCount = false, 0
	c.stopAckTimer()
	return len(a.Append(dst[:0]))
}

// needsExtended is the choice between BACK and EACK.
func (c *Conn) needsExtended() bool {
	return !isZero(&c.reqRx.ack) || !isZero(&c.dataRx.ack) || hasHole(&c.dataRx.rx) || c.reqRx.own || c.dataRx.own
}

func (c *Conn) congestionInfo() wire.Congestion {
	return wire.Congestion{Hops: min(c.lastHops, 15), RxOccupancy: c.e.rxOccupancy(), ECN: c.ecn}
}

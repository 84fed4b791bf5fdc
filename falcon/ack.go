package falcon

import "github.com/falcon-vnic/vnic/falcon/wire"

// Weights of received packets in the coalescing count: a push counts one half when received and one
// half when the ULP acknowledges it, everything else counts whole when received.
const (
	halfPacket  = 1
	wholePacket = 2
)

// coalesce counts something to acknowledge: an ACK goes when enough came together or time is up
// (Falcon §9.1.6).
func (c *Conn) coalesce(now Time, weight uint16) {
	c.ackCount += weight
	if c.ackCount >= c.e.ackAfter {
		c.ackSoon()
		return
	}
	if c.busy&wantAck != 0 || c.ackTimer.Armed() {
		return
	}
	c.e.wheel.Queue(&c.ackTimer, c, timerAck, now+c.e.profile.AckTimeout)
}

// ackSoon queues an ACK for the next Transmit.
func (c *Conn) ackSoon() {
	if c.closed {
		return
	}
	c.e.wheel.Stop(&c.ackTimer)
	c.busy |= wantAck
	c.e.queues[classAck].push(c)
}

// FlushAcks queues every coalesced acknowledgement for the next Transmit: for an owner that is
// about to sleep.
func (e *Engine) FlushAcks(now Time) {
	for owner, ok := e.wheel.Flush(); ok; owner, ok = e.wheel.Flush() {
		owner.expired(now, timerAck)
	}
}

// piggybacked notes that a packet with the current bases left. If they say everything, no timer is
// needed; an ACK that is due anyway stays due, since only it carries timestamps.
func (c *Conn) piggybacked() {
	if c.ackCount == 0 {
		return
	}
	if isZero(&c.reqBits) && isZero(&c.dataBits.ack) && isZero(&c.dataBits.rx) && !c.reqRx.own && !c.dataRx.own {
		c.e.wheel.Stop(&c.ackTimer)
		c.ackCount = 0
	}
}

// sendAck writes a NACK if one waits, else the ACK.
func (c *Conn) sendAck(now Time, dst []byte) int {
	if len(dst) < wire.EACKLen {
		return 0
	}
	if c.busy&wantNack != 0 {
		return c.sendNack(dst)
	}
	if c.busy&wantAck == 0 {
		return 0
	}
	var a wire.Ack
	a.CID, a.DataBase, a.ReqBase, a.T1, a.T2 = c.remoteCID, c.dataRx.base, c.reqRx.base, c.lastT1, c.lastT2
	a.Congestion, a.DataOWN, a.ReqOWN = c.congestionInfo(), c.dataRx.own, c.reqRx.own
	if c.needsExtended() {
		a.Extended = true
		a.DataAck, a.DataRx, a.Req = c.dataBits.ack, c.dataBits.rx, c.reqBits.Lo
		if a.DataOWN || a.ReqOWN {
			c.e.stats.OWNSent++
		}
		c.dataRx.own, c.reqRx.own = false, false
		c.e.stats.ExtendedAcksSent++
	}
	c.e.stats.AcksSent++
	c.ackCount = 0
	c.busy &^= wantAck
	c.e.wheel.Stop(&c.ackTimer)
	c.checkDrained()
	return len(a.Append(dst[:0]))
}

// needsExtended is the choice between BACK and EACK.
func (c *Conn) needsExtended() bool {
	b := &c.dataBits
	return !isZero(&c.reqBits) || !isZero(&b.ack) || c.reqRx.own || c.dataRx.own ||
		hasHole(&b.rx) || c.e.profile.RACK && !isZero(&b.rx)
}

func (c *Conn) congestionInfo() wire.Congestion {
	return wire.Congestion{Hops: min(c.lastHops, 15), RxOccupancy: c.rxOccupancy(), ECN: c.ecn}
}

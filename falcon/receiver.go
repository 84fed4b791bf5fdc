package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// Weights of received packets in the coalescing count. A push counts one half when it is received
// and one half when the ULP acknowledges it. Every other packet counts whole when it is received.
const (
	halfPacket  = 1
	wholePacket = 2
)

// coalesce adds weight to the count of packets to acknowledge. An ACK is sent when the count
// reaches a threshold or a timer fires (Falcon §9.1.6). It is sent at once when it reports a loss
// (Falcon §9.1.4): until the peer knows of the loss, the packets that it sends may find the window
// full.
func (c *state) coalesce(now Time, weight uint16) {
	c.ackCount += weight
	if c.ackCount >= c.e.ackAfter || c.dataRx.loss || c.reqRx.loss {
		c.ackSoon()
		return
	}
	if c.busy&wantAck != 0 || c.ackTimer.Armed() {
		return
	}
	c.e.wheel.Queue(&c.ackTimer, c.self(), timerAck, now+c.e.profile.AckTimeout)
}

// ackSoon queues an ACK for the next Transmit.
func (c *state) ackSoon() {
	if c.closed {
		return
	}
	c.e.wheel.Stop(&c.ackTimer)
	c.dataRx.loss, c.reqRx.loss = false, false
	c.busy |= wantAck
	c.e.schedule.queues[classAck].push(c.self())
}

// received counts an accepted packet that the ULP need not answer, and honours its AR bit.
func (c *state) received(now Time, h *wire.Header) {
	c.coalesce(now, wholePacket)
	if h.AckReq {
		c.ackSoon()
	}
}

// piggybacked records that a packet with the current bases was sent. If the bases acknowledge
// everything received, the ACK timer is stopped. An ACK that is already due stays due, because only
// an ACK carries timestamps.
func (c *state) piggybacked() {
	if c.ackCount == 0 {
		return
	}
	if isZero(&c.reqBits) && isZero(&c.dataBits.ack) && isZero(&c.dataBits.rx) && !c.reqRx.own && !c.dataRx.own {
		c.e.wheel.Stop(&c.ackTimer)
		c.ackCount = 0
	}
}

// maxNacks limits the NACKs queued on a connection. Dropping a NACK is harmless: the peer sends the
// packet again.
const maxNacks = wire.DataWindow

func (c *state) queueNack(n nackEntry) {
	if c.closed || len(c.nacks) >= maxNacks {
		return
	}
	c.nacks = append(c.nacks, n)
	c.busy |= wantNack
	c.e.schedule.queues[classAck].push(c.self())
}

// countNack counts a NACK by its code. Reserved codes (Falcon §7.8) are counted as code 0; the ULP
// can refuse with such a code too.
func countNack(counts *[wire.NackCodes]uint64, code wire.NackCode) {
	if !code.Valid() {
		code = 0
	}
	counts[code]++
}

// sendAck writes a NACK if one is queued, else the ACK if one is due.
func (c *sender) sendAck(now Time, dst []byte) int {
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

// needsExtended reports whether an ACK must be an EACK rather than a BACK.
func (c *sender) needsExtended() bool {
	b := &c.dataBits
	return !isZero(&c.reqBits) || !isZero(&b.ack) || c.reqRx.own || c.dataRx.own ||
		hasHole(&b.rx) || c.e.profile.RACK && !isZero(&b.rx)
}

func (c *sender) congestionInfo() wire.Congestion {
	return wire.Congestion{Hops: min(c.lastHops, 15), RxOccupancy: c.rxOccupancy(), ECN: c.ecn}
}

// rxOccupancy returns the level that acknowledgements report: the level of the engine's pools, or
// that of the function or connection if it is higher, because they may be full long before.
func (c *sender) rxOccupancy() uint8 {
	level := c.e.contexts.occupancy()
	if c.credits == nil {
		return level
	}
	return max(level, c.credits.Level(credit.NetPktRx, OccupancyLevels+1), c.credits.Level(credit.NetBufRx, OccupancyLevels+1))
}

func (c *sender) sendNack(dst []byte) int {
	q := c.nacks[0]
	c.nacks = c.nacks[:copy(c.nacks, c.nacks[1:])]
	if len(c.nacks) == 0 {
		c.busy &^= wantNack
	}
	n := wire.Nack{
		CID: c.remoteCID, DataBase: c.dataRx.base, ReqBase: c.reqRx.base, T1: c.lastT1, T2: c.lastT2,
		Congestion: c.congestionInfo(),
		PSN:        q.psn, Code: q.code, RNR: q.rnr, Request: q.request, ULPCode: q.ulpCode,
	}
	c.e.stats.NacksSent++
	countNack(&c.e.stats.NackCodesSent, q.code)
	return len(n.Append(dst[:0]))
}

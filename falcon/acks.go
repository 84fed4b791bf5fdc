package falcon

import "github.com/falcon-vnic/vnic/falcon/wire"

// Weights of received packets in the coalescing count: a push counts one half when received and one
// half when the ULP acknowledges it, everything else counts whole when received.
const (
	halfPacket  = 1
	wholePacket = 2
)

// coalesce counts something to acknowledge: an ACK goes when enough came together or time is up
// (Falcon §9.1.6). It goes at once when it tells of a loss (Falcon §9.1.4): what the peer sends
// until it knows may find the window full.
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

// received counts an accepted packet that needs no answer of the ULP, and honours its AR bit.
func (c *state) received(now Time, h *wire.Header) {
	c.coalesce(now, wholePacket)
	if h.AckReq {
		c.ackSoon()
	}
}

// piggybacked notes that a packet with the current bases left. If they say everything, no timer is
// needed; an ACK that is due anyway stays due, since only it carries timestamps.
func (c *state) piggybacked() {
	if c.ackCount == 0 {
		return
	}
	if isZero(&c.reqBits) && isZero(&c.dataBits.ack) && isZero(&c.dataBits.rx) && !c.reqRx.own && !c.dataRx.own {
		c.e.wheel.Stop(&c.ackTimer)
		c.ackCount = 0
	}
}

// maxNacks bounds the NACKs a connection queues. A lost one is not missed: the packet comes again.
const maxNacks = wire.DataWindow

func (c *state) queueNack(n nackEntry) {
	if c.closed || len(c.nacks) >= maxNacks {
		return
	}
	c.nacks = append(c.nacks, n)
	c.busy |= wantNack
	c.e.schedule.queues[classAck].push(c.self())
}

// countNack counts a NACK by its code, a reserved one (Falcon §7.8) as code 0. The ULP can refuse
// with such a code too.
func countNack(counts *[wire.NackCodes]uint64, code wire.NackCode) {
	if !code.Valid() {
		code = 0
	}
	counts[code]++
}

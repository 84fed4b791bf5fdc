package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// receiver holds what arrived from the peer, and acknowledges it.
type receiver struct {
	nacks []nackEntry // NACKs to send

	conn           *Conn
	lastT1, lastT2 uint32       // when the last packet with a base header was sent and received
	timer          timer.Handle // of a coalesced acknowledgement
	ackCount       uint16       // packets not acknowledged, counted in halves (Falcon §9.1.6)
	ecn            uint16       // packets that arrived marked, wraps
	lastHops       uint8
	data, requests rxWindow
}

// nackEntry is a NACK that waits to be sent.
type nackEntry struct {
	psn     uint32
	code    wire.NackCode
	rnr     uint8
	ulpCode uint8
	request bool
}

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
func (r *receiver) coalesce(now Time, weight uint16) {
	r.ackCount += weight
	if r.ackCount >= r.conn.e.ackAfter || r.data.loss || r.requests.loss {
		r.ackSoon()
		return
	}
	if r.conn.busy&wantAck != 0 || r.timer.Armed() {
		return
	}
	r.conn.e.wheel.Queue(&r.timer, r, 0, now+r.conn.e.profile.AckTimeout)
}

// ackSoon queues an ACK for the next Transmit.
func (r *receiver) ackSoon() {
	if r.conn.closed {
		return
	}
	r.conn.e.wheel.Stop(&r.timer)
	r.data.loss, r.requests.loss = false, false
	r.conn.busy |= wantAck
	r.conn.queue(classAck)
}

// expired implements timerOwner: the coalesced acknowledgement is due.
func (r *receiver) expired(Time) { r.ackSoon() }

// received counts an accepted packet that the ULP need not answer, and honours its AR bit.
func (r *receiver) received(now Time, h *wire.Header) {
	r.coalesce(now, wholePacket)
	if h.AckReq {
		r.ackSoon()
	}
}

// piggybacked records that a packet with the current bases was sent. If the bases acknowledge
// everything received, the ACK timer is stopped. An ACK that is already due stays due, because only
// an ACK carries timestamps.
func (r *receiver) piggybacked() {
	if r.ackCount == 0 {
		return
	}
	if r.requests.baseSaysAll() && r.data.baseSaysAll() {
		r.conn.e.wheel.Stop(&r.timer)
		r.ackCount = 0
	}
}

// maxNacks limits the NACKs queued on a connection. Dropping a NACK is harmless: the peer sends the
// packet again.
const maxNacks = wire.DataWindow

func (r *receiver) queueNack(n nackEntry) {
	if r.conn.closed || len(r.nacks) >= maxNacks {
		return
	}
	r.nacks = append(r.nacks, n)
	r.conn.busy |= wantNack
	r.conn.queue(classAck)
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
func (r *receiver) sendAck(now Time, dst []byte) int {
	if len(dst) < wire.EACKLen {
		return 0
	}
	if r.conn.busy&wantNack != 0 {
		return r.sendNack(dst)
	}
	if r.conn.busy&wantAck == 0 {
		return 0
	}
	var a wire.Ack
	a.CID, a.DataBase, a.ReqBase, a.T1, a.T2 = r.conn.cfg.RemoteCID, r.data.base, r.requests.base, r.lastT1, r.lastT2
	a.Congestion, a.DataOWN, a.ReqOWN = r.congestionInfo(), r.data.own, r.requests.own
	if r.needsExtended() {
		a.Extended = true
		a.DataAck, a.DataRx, a.Req = r.data.acked, r.data.received, r.requests.acked.Lo
		if a.DataOWN || a.ReqOWN {
			r.conn.e.stats.OWNSent++
		}
		r.data.own, r.requests.own = false, false
		r.conn.e.stats.ExtendedAcksSent++
	}
	r.conn.e.stats.AcksSent++
	r.ackCount = 0
	r.conn.busy &^= wantAck
	r.conn.e.wheel.Stop(&r.timer)
	r.conn.checkDrained()
	return len(a.Append(dst[:0]))
}

// needsExtended reports whether an ACK must be an EACK rather than a BACK.
func (r *receiver) needsExtended() bool {
	d := &r.data
	return !r.requests.baseSaysAll() || !isZero(&d.acked) || d.own ||
		hasHole(&d.received) || r.conn.e.profile.RACK && !isZero(&d.received)
}

func (r *receiver) congestionInfo() wire.Congestion {
	return wire.Congestion{Hops: min(r.lastHops, 15), RxOccupancy: r.rxOccupancy(), ECN: r.ecn}
}

// rxOccupancy returns the level that acknowledgements report: the level of the engine's pools, or
// that of the function or connection if it is higher, because they may be full long before.
func (r *receiver) rxOccupancy() uint8 {
	level := r.conn.e.contexts.occupancy()
	if r.conn.credits.node == nil {
		return level
	}
	return max(level, r.conn.credits.node.Level(credit.NetPktRx, OccupancyLevels+1), r.conn.credits.node.Level(credit.NetBufRx, OccupancyLevels+1))
}

func (r *receiver) sendNack(dst []byte) int {
	q := r.nacks[0]
	r.nacks = r.nacks[:copy(r.nacks, r.nacks[1:])]
	if len(r.nacks) == 0 {
		r.conn.busy &^= wantNack
	}
	n := wire.Nack{
		CID: r.conn.cfg.RemoteCID, DataBase: r.data.base, ReqBase: r.requests.base, T1: r.lastT1, T2: r.lastT2,
		Congestion: r.congestionInfo(),
		PSN:        q.psn, Code: q.code, RNR: q.rnr, Request: q.request, ULPCode: q.ulpCode,
	}
	r.conn.e.stats.NacksSent++
	countNack(&r.conn.e.stats.NackCodesSent, q.code)
	return len(n.Append(dst[:0]))
}

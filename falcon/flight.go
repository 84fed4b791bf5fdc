package falcon

import (
	"math/bits"

	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// flight holds the packets that were sent and are not acknowledged, with the windows that limit them
// (flight.go), and finds those that are lost (recovery.go).
type flight struct {
	data, requests txWindow // push and pull data; pull requests

	conn       *Conn
	sent       list.List[txn] // neither acknowledged nor refused, the longest ago first
	unanswered list.List[txn] // received by the peer, whose ULP has not answered; the longest ago first
	arrivals   arrivals       // arrival times learnt from acknowledgements
	probeFrom  Time           // when an acknowledgement was last received, or a probe sent
	timer      timer.Handle   // fires no later than the next of these packets is due
	probes     uint8          // tail loss probes since the last acknowledgement

	cc      congestion
	lastRNR Time // when the last RNR NACK was received

	target    *target    // whose responses, and
	initiator *initiator // whose requests are in flight
}

// arrivals holds what acknowledgements say about when packets arrive.
type arrivals struct {
	sent Time // when the newest packet that arrived was sent
	lag  Time // time from then until its acknowledgement

	reorder uint8 // quarters of an RTT by which packets may overtake each other
	needed  uint8 // needed early retransmissions since the last one that was not needed
}

// window returns the window that a kind of packet is sent in.
func (f *flight) window(kind TxnKind) *txWindow {
	if kind == TxnPull {
		return &f.requests
	}
	return &f.data
}

// maySend is the gating function for new packets (Falcon §9.1.2).
func (f *flight) maySend(kind TxnKind) bool {
	p := &f.conn.e.profile
	w, size, slack := &f.data, p.DataTxWindow, p.DataOWNSlack
	if kind == TxnPull {
		w, size, slack = &f.requests, p.ReqTxWindow, p.ReqOWNSlack
	}
	if w.paused {
		if w.inFlight() > slack {
			return false
		}
		w.paused = false
	}
	return w.inFlight() < min(f.cc.fcwnd(), size) && (kind == TxnPullData || uint32(w.outstanding) < f.cc.ncwnd())
}

// mayResend is the gating function for retransmissions.
func (f *flight) mayResend(t *txn) bool {
	w := f.window(t.kind)
	return t.psn-w.base < f.cc.fcwnd() && (t.kind == TxnPullData || uint32(w.resent) < f.cc.ncwnd())
}

// ackTimes are the times of an ACK: now, and when the packet was sent that the peer received last.
// Acknowledgements that other packets carry have none.
type ackTimes struct {
	now Time
	t1  uint32
}

// checkBases compares the bases of an acknowledgement with the windows. An acknowledgement with a
// base behind its window is stale and is ignored altogether. One with a base beyond what was sent
// is impossible.
func (f *flight) checkBases(dataBase, reqBase uint32) wire.Drop {
	d, r := dataBase-f.data.base, reqBase-f.requests.base
	switch {
	case int32(d) < 0 || int32(r) < 0:
		return wire.DropStaleAck
	case d > f.data.inFlight() || r > f.requests.inFlight():
		return wire.DropImpossibleAck
	}
	return wire.DropNone
}

// advanceBases acknowledges everything before the bases, which passed checkBases. times is nil if
// the acknowledgement has none.
func (f *flight) advanceBases(dataBase, reqBase uint32, times *ackTimes) {
	f.ackUpTo(&f.data, dataBase, times)
	f.ackUpTo(&f.requests, reqBase, times)
}

func (f *flight) ackUpTo(w *txWindow, base uint32, times *ackTimes) {
	for int32(base-w.base) > 0 {
		f.packetAcked(w.at(w.base), times) // the oldest packet is in the window; packetAcked advances the base
	}
}

func (f *flight) ackBits(w *txWindow, base uint32, bitmap uint64, times *ackTimes) {
	for ; bitmap != 0; bitmap &= bitmap - 1 {
		if t := w.at(base + uint32(bits.TrailingZeros64(bitmap))); t != nil {
			f.packetAcked(t, times)
		}
	}
}

// packetAcked marks the packet of t, which is in its window, as acknowledged and removes it from
// the window.
func (f *flight) packetAcked(t *txn, times *ackTimes) {
	w := f.window(t.kind)
	f.conn.e.wheel.Stop(&t.timer)
	if times != nil && t.in != inUnanswered {
		f.delivered(t, times)
	}
	f.uncountResent(t)
	t.unlink()
	if f.sent.Empty() && f.unanswered.Empty() {
		f.conn.e.wheel.Stop(&f.timer)
	}
	t.packetDone = true
	w.remove(t.psn)
	f.cc.countAcked()
	if t.kind != TxnPullData {
		w.outstanding--
	}
	switch {
	case t.kind == TxnPullData:
		t.state = pullDataAckd
		code := CmplAck
		if t.resync != 0 {
			code = t.code
		}
		f.target.responseDone(t, code)
	case t.done:
		f.initiator.release(t)
	case t.resync != 0:
		f.initiator.complete(t, t.code)
	case t.kind == TxnPush:
		t.state = pushDataAckd
		f.initiator.complete(t, CmplAck)
	default:
		t.state = pullReqAckd
	}
	f.conn.checkDrained()
}

// delivered records that an acknowledgement covers t. If the packet that the peer received last was
// sent before the last transmission of t, the peer received an earlier copy of t, and the last
// transmission was not needed.
func (f *flight) delivered(t *txn, times *ackTimes) {
	h := &f.arrivals
	needed := int32(times.t1-FalconTime(t.lastSent)) >= 0
	switch {
	case t.lastSent == t.firstSent:
	case t.cause == causeTimeout && !needed:
		f.conn.e.stats.SpuriousTimeouts++
	case t.cause == causeEarly && !needed:
		f.conn.e.stats.SpuriousEarly++
		h.reorder, h.needed = min(h.reorder+1, maxReorder), 0
	case t.cause == causeEarly:
		if h.needed++; h.needed == needEarly {
			h.reorder, h.needed = 0, 0
		}
	}
	if needed && t.lastSent > h.sent {
		h.sent, h.lag = t.lastSent, times.now-t.lastSent
	}
}

// implicitAck acknowledges the request packet of a pull whose response has arrived.
func (f *flight) implicitAck(t *txn) {
	if t.packetDone {
		return
	}
	t.resync = 0 // the packet arrived, so no Resync is needed
	f.packetAcked(t, nil)
	f.conn.enqueue()
}

// onNoRoom leaves a packet that the target has no room for to the retransmission timer. That
// includes a packet that the target had accepted before and then evicted.
func (f *flight) onNoRoom(now Time, t *txn) {
	if t.in != inUnanswered {
		return
	}
	t.unlink()
	t.lastSent = now
	t.enlist(inFlight)
	f.arm()
}

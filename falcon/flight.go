package falcon

import (
	"math/bits"

	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/ring"
)

func (c *state) window(kind TxnKind) *txWindow {
	if kind == TxnPull {
		return &c.reqTx
	}
	return &c.dataTx
}

// packets returns the unacknowledged packets of the window, by PSN.
func (c *state) packets(w *txWindow) *ring.Window[txn] {
	if w == &c.reqTx {
		return &c.reqPackets
	}
	return &c.dataPackets
}

// packetAt returns the transaction of an unacknowledged packet, nil if no such packet has that PSN.
func (c *state) packetAt(w *txWindow, psn uint32) *txn { return c.packets(w).At(w.base, psn) }

// assignPSN gives t the next PSN of the window.
func (c *state) assignPSN(w *txWindow, t *txn) {
	t.psn = w.next
	c.packets(w).Put(w.base, t.psn, t)
	w.next++
}

// hearing describes the acknowledgement being processed. t1 is the send time of the packet that the
// peer received last.
type hearing struct {
	on  bool
	now Time
	t1  uint32
}

// checkBases compares the bases of an acknowledgement with the windows. An acknowledgement with a
// base behind its window is stale and is ignored altogether. One with a base beyond what was sent
// is impossible.
func (c *delivery) checkBases(dataBase, reqBase uint32) wire.Drop {
	d, r := dataBase-c.dataTx.base, reqBase-c.reqTx.base
	switch {
	case int32(d) < 0 || int32(r) < 0:
		return wire.DropStaleAck
	case d > c.dataTx.next-c.dataTx.base || r > c.reqTx.next-c.reqTx.base:
		return wire.DropImpossibleAck
	}
	return wire.DropNone
}

// advanceBases acknowledges everything before the bases, which passed checkBases.
func (c *delivery) advanceBases(dataBase, reqBase uint32) {
	c.ackUpTo(&c.dataTx, dataBase)
	c.ackUpTo(&c.reqTx, reqBase)
}

func (c *delivery) ackUpTo(w *txWindow, base uint32) {
	for int32(base-w.base) > 0 {
		c.packetAcked(c.packetAt(w, w.base)) // the oldest packet is in the window; packetAcked slides the window
	}
}

func (c *delivery) ackBits(w *txWindow, base uint32, bitmap uint64) {
	for ; bitmap != 0; bitmap &= bitmap - 1 {
		if t := c.packetAt(w, base+uint32(bits.TrailingZeros64(bitmap))); t != nil {
			c.packetAcked(t)
		}
	}
}

// packetAcked marks the packet of t, which is in its window, as acknowledged and removes it from
// the window.
func (c *delivery) packetAcked(t *txn) {
	w := c.window(t.kind)
	c.e.wheel.Stop(&t.timer)
	if h := &c.e.hearing; h.on && t.in != inAnswer {
		c.delivered(h.now, t, h.t1)
	}
	c.uncountAgain(t)
	t.unlink()
	if c.flight().Empty() && c.answers().Empty() {
		c.e.wheel.Stop(&c.flightTimer)
	}
	t.packetDone = true
	packets := c.packets(w)
	packets.Clear(t.psn)
	if c.acked < maxAcked {
		c.acked++
	}
	if t.kind != TxnPullData {
		w.outstanding--
	}
	w.slide(packets)
	switch {
	case t.kind == TxnPullData:
		t.state = pullDataAckd
		code := CmplAck
		if t.resync != 0 {
			code = t.code
		}
		c.responseDone(t, code)
	case t.done:
		c.release(t)
	case t.resync != 0:
		c.complete(t, t.code)
	case t.kind == TxnPush:
		t.state = pushDataAckd
		c.complete(t, CmplAck)
	default:
		t.state = pullReqAckd
	}
	c.checkDrained()
}

// maxAcked is the saturation value of the 10-bit count of packets between congestion events.
const maxAcked = 1<<10 - 1

// delivered records that an acknowledgement covers t. t1 is the timestamp of the packet that the
// peer received last. If that packet was sent before the last transmission of t, the peer received
// an earlier copy of t, and the last transmission was not needed.
func (c *delivery) delivered(now Time, t *txn, t1 uint32) {
	h := &c.heard
	needed := int32(t1-FalconTime(t.lastSent)) >= 0
	switch {
	case t.lastSent == t.firstSent:
	case t.why == whyTimeout && !needed:
		c.e.stats.SpuriousTimeouts++
	case t.why == whyEarly && !needed:
		c.e.stats.SpuriousEarly++
		h.reorder, h.needed = min(h.reorder+1, maxReorder), 0
	case t.why == whyEarly:
		if h.needed++; h.needed == needEarly {
			h.reorder, h.needed = 0, 0
		}
	}
	if needed && t.lastSent > h.sent {
		h.sent, h.lag = t.lastSent, now-t.lastSent
	}
}

// implicitAck acknowledges the request packet of a pull whose response has arrived.
func (c *delivery) implicitAck(t *txn) {
	if t.packetDone {
		return
	}
	t.resync = 0 // the packet arrived, so no Resync is needed
	c.packetAcked(t)
	c.kick()
}

package falcon

import (
	"math/bits"

	"github.com/falcon-vnic/vnic/falcon/cc/rue"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// onAck processes a BACK or EACK (Falcon §9.2.3).
func (c *Conn) onAck(now Time, p *Packet, a *wire.Ack) wire.Drop {
	if d := c.checkBases(a.DataBase, a.ReqBase); d != wire.DropNone {
		return d
	}
	c.e.hearing = hearing{on: true, now: now, t1: a.T1}
	c.advanceBases(a.DataBase, a.ReqBase)
	lost := false
	c.e.stats.AcksReceived++
	if a.Extended {
		c.e.stats.ExtendedAcksReceived++
		if a.DataOWN || a.ReqOWN {
			c.e.stats.OWNReceived++
		}
		c.ackBits(&c.dataTx, a.DataBase, a.DataAck.Lo)
		c.ackBits(&c.dataTx, a.DataBase+64, a.DataAck.Hi)
		c.ackBits(&c.reqTx, a.ReqBase, a.Req)
		c.noteReceived(now, a.DataBase, a.DataAck, a.DataRx, a.T1)
		req := wire.Bitmap128{Lo: a.Req}
		lost = c.recoverLosses(now, &c.dataTx, a.DataBase, &a.DataRx, a.DataOWN, c.e.profile.DataOWNSlack)
		lost = c.recoverLosses(now, &c.reqTx, a.ReqBase, &req, a.ReqOWN, c.e.profile.ReqOWNSlack) || lost
	}
	c.e.hearing.on = false
	c.findLost(now)
	c.lively, c.probes = now, 0
	ev := c.delaySample(now, p, rue.TypeAck, a.T1, a.T2, &a.Congestion)
	ev.Eack, ev.EackDrop, ev.EackOwn = a.Extended, lost, a.DataOWN || a.ReqOWN
	c.congestion(now)
	c.watchDelay(now)
	c.timeFlight()
	c.kick()
	return wire.DropNone
}

// hearing is the acknowledgement that is being processed: it knows when the packet was sent that
// the peer received last.
type hearing struct {
	on  bool
	now Time
	t1  uint32
}

// delaySample prepares the RUE's event of an ACK or NACK (Falcon §10.1): T3 and T4 are when it was
// sent and received.
func (c *Conn) delaySample(now Time, p *Packet, typ rue.Type, t1, t2 uint32, info *wire.Congestion) *rue.Event {
	ev := &c.e.rate.ev
	*ev = rue.Event{
		Type: typ, Hops: info.Hops, RxLevel: info.RxOccupancy, ECN: info.ECN, Metadata: info.RUE,
		T1: t1, T2: t2, T3: p.T1, T4: FalconTime(now),
	}
	return ev
}

// checkBases compares the bases of an acknowledgement with the windows: behind either one it is
// stale and ignored altogether, beyond what was sent it is impossible.
func (c *Conn) checkBases(dataBase, reqBase uint32) wire.Drop {
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
func (c *Conn) advanceBases(dataBase, reqBase uint32) {
	c.ackUpTo(&c.dataTx, dataBase)
	c.ackUpTo(&c.reqTx, reqBase)
}

func (c *Conn) ackUpTo(w *txWindow, base uint32) {
	packets := c.packets(w)
	for int32(base-w.base) > 0 {
		if t := packets.Get(w.base); t != nil {
			c.packetAcked(t)
		} else {
			w.base++
		}
	}
	w.slide(packets)
}

func (c *Conn) ackBits(w *txWindow, base uint32, bitmap uint64) {
	for ; bitmap != 0; bitmap &= bitmap - 1 {
		if t := c.packetAt(w, base+uint32(bits.TrailingZeros64(bitmap))); t != nil {
			c.packetAcked(t)
		}
	}
}

// packetAcked ends the packet of t, which is in its window.
func (c *Conn) packetAcked(t *txn) {
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

// maxAcked is where the 10-bit count of packets between congestion events saturates.
const maxAcked = 1<<10 - 1

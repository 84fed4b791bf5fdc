package falcon

import (
	"time"

	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/cc/rue"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// receiver processes the packets of the peer.
type receiver struct {
	sender

	longPath longPath
}

// longPath detects connections that congestion control limits to one packet per round trip to no
// avail: if the delay is above the target with so small a window, the connection's own queue is not
// the cause. Either the path is longer than the target, or more flows share a port than its queue
// has room for.
type longPath struct {
	since Time // since when the delay is above the target and the window a packet or less; 0: that is not so
	told  bool // that lasted for longPathAfter, and EvLongPath was emitted
}

// onAck processes a BACK or EACK (Falcon §9.2.3).
func (c *receiver) onAck(now Time, p *Packet, a *wire.Ack) wire.Drop {
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
		lost = c.recoverLosses(now, &c.dataTx, a.DataBase, &a.DataRx, a.DataOWN)
		lost = c.recoverLosses(now, &c.reqTx, a.ReqBase, &req, a.ReqOWN) || lost
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

// delaySample fills in the RUE event of an ACK or NACK (Falcon §10.1). T3 is when the ACK or NACK
// was sent, T4 when it was received.
func (c *receiver) delaySample(now Time, p *Packet, typ rue.Type, t1, t2 uint32, info *wire.Congestion) *rue.Event {
	ev := &c.e.rate.ev
	*ev = rue.Event{
		Type: typ, Hops: info.Hops, RxLevel: info.RxOccupancy, ECN: info.ECN, Metadata: info.RUE,
		T1: t1, T2: t2, T3: p.T1, T4: FalconTime(now),
	}
	return ev
}

const longPathAfter = int64(time.Second)

func (c *receiver) watchDelay(now Time) {
	l, s := &c.longPath, &c.cc
	if s.BaseDelay == 0 || s.Delay < s.BaseDelay || s.Fcwnd > cc.One {
		*l = longPath{}
		return
	}
	if l.since == 0 {
		l.since = now
	}
	if !l.told && now-l.since >= longPathAfter {
		l.told = true
		c.emit(EvLongPath)
	}
}

package falcon

import (
	"time"

	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/cc/rue"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// Packet is a received Falcon packet that PSP has already opened and checked.
type Packet struct {
	T1   uint32 // when it was sent, Falcon units: bits 17 to 48 of the PSP initialisation vector
	Hops uint8  // forward hop count, 0..15
	CE   bool   // the outer header is marked Congestion Experienced
	Data []byte // Falcon header and payload
}

// Receive processes one packet and returns wire.DropNone if it was accepted. Payload is delivered
// in place where possible, so take all events with Next before p.Data is used again.
func (e *Engine) Receive(now Time, p Packet) wire.Drop {
	d := e.receive(now, &p)
	e.stats.PacketsReceived++
	e.stats.Drops[d]++
	return d
}

func (e *Engine) receive(now Time, p *Packet) wire.Drop {
	typ, d := wire.Peek(p.Data)
	if d != wire.DropNone {
		return d
	}
	cid, _ := wire.PeekCID(p.Data)
	c := e.conns.find(cid)
	if c == nil {
		return wire.DropUnknownCID
	}
	if p.CE { // acknowledgements too: all packets are sent ECN-capable
		c.ecn++
		e.stats.ECNMarked++
	}
	switch typ {
	case wire.TypeBACK, wire.TypeEACK:
		if d := e.ack.Parse(p.Data); d != wire.DropNone {
			return d
		}
		return c.onAck(now, p, &e.ack)
	case wire.TypeNACK:
		n, d := wire.ParseNack(p.Data)
		if d != wire.DropNone {
			return d
		}
		return c.onNack(now, p, &n)
	case wire.TypePushData:
		payload, d := e.push.Parse(p.Data)
		if d == wire.DropNone {
			d = c.accept(now, p, &e.push.Header)
		}
		if d != wire.DropNone {
			return d
		}
		return c.onPush(now, &e.push.Header, payload)
	case wire.TypePullRequest:
		m, payload, d := wire.ParsePullRequest(p.Data)
		if d == wire.DropNone {
			d = c.accept(now, p, &m.Header)
		}
		if d != wire.DropNone {
			return d
		}
		return c.onPullRequest(now, &m, payload)
	case wire.TypePullData:
		m, payload, d := wire.ParsePullData(p.Data)
		if d == wire.DropNone {
			d = c.accept(now, p, &m.Header)
		}
		if d != wire.DropNone {
			return d
		}
		return c.onPullData(now, &m.Header, payload)
	default:
		m, d := wire.ParseResync(p.Data)
		if d == wire.DropNone {
			d = c.accept(now, p, &m.Header)
		}
		if d != wire.DropNone {
			return d
		}
		e.stats.ResyncsReceived++
		return c.onResync(now, &m)
	}
}

// accept checks that a packet with a base header is meant for this connection, records its
// timestamps for the next acknowledgement and processes the acknowledgement that it carries.
func (c *receiver) accept(now Time, p *Packet, h *wire.Header) wire.Drop {
	if h.Function != c.localFunction {
		return wire.DropFunction
	}
	if h.Protocol != c.protocol {
		return wire.DropProtocol
	}
	c.lastT1, c.lastT2, c.lastHops = p.T1, FalconTime(now), p.Hops
	if h.DataBase == c.dataTx.base && h.ReqBase == c.reqTx.base {
		return wire.DropNone
	}
	if c.checkBases(h.DataBase, h.ReqBase) != wire.DropNone {
		c.e.stats.IgnoredAcks++
		return wire.DropNone
	}
	c.advanceBases(h.DataBase, h.ReqBase)
	c.kick()
	return wire.DropNone
}

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

// onNack processes a NACK (Falcon §9.2.4, §11).
func (c *receiver) onNack(now Time, p *Packet, n *wire.Nack) wire.Drop {
	if d := c.checkBases(n.DataBase, n.ReqBase); d != wire.DropNone {
		return d
	}
	c.e.stats.NacksReceived++
	countNack(&c.e.stats.NackCodesReceived, n.Code)
	// Find the transaction before the bases move: a pull request that the target's ULP refused is
	// acknowledged by them.
	t := c.refused(n)
	c.advanceBases(n.DataBase, n.ReqBase)
	c.delaySample(now, p, rue.TypeNack, n.T1, n.T2, &n.Congestion).NackCode = uint8(n.Code)
	c.congestion(now)
	defer c.kick()
	if !n.Code.Valid() {
		return wire.DropNackCode
	}
	if t == nil || t.conn != c.self() {
		return wire.DropNackTarget
	}
	switch n.Code {
	case wire.NackResource:
		c.onNoRoom(now, t)
	case wire.NackRNR:
		c.onRNR(now, t, n.RNR)
	case wire.NackXLR:
		c.onRefused(t, wire.ResyncRemoteXLR, CmplRemoteErr, 0)
	case wire.NackCIE:
		c.onRefused(t, wire.ResyncCIE, CmplTargetNackCIE, n.ULPCode)
	case wire.NackNRE:
		c.onRefused(t, wire.ResyncNRE, CmplTargetNackNRE, n.ULPCode)
	case wire.NackCID:
		c.onRefused(t, wire.ResyncCID, CmplTargetNackCID, n.ULPCode)
	}
	return wire.DropNone
}

// refused returns the transaction that a NACK refers to, from its window or from the pulls that
// wait for data. PSNs that the same packet acknowledges count as acknowledged.
func (c *receiver) refused(n *wire.Nack) *txn {
	w, base := &c.dataTx, n.DataBase
	if n.Request {
		w, base = &c.reqTx, n.ReqBase
	}
	t := c.packetAt(w, n.PSN)
	if !n.Request {
		if int32(n.PSN-base) < 0 {
			return nil
		}
		return t
	}
	if t != nil || n.Code == wire.NackResource || n.Code == wire.NackRNR {
		return t
	}
	for rsn := c.baseRSN; rsn != c.nextRSN; rsn++ {
		if t := c.txns.Get(rsn); t.state == pullReqAckd && t.psn == n.PSN && !t.done {
			return t
		}
	}
	return nil
}

// onNoRoom leaves a packet that the target has no room for to the retransmission timer. That
// includes a packet that the target had accepted before and then evicted.
func (c *receiver) onNoRoom(now Time, t *txn) {
	if t.in != inAnswer {
		return
	}
	t.unlink()
	t.lastSent = now
	t.enlist(inFlight)
	c.timeFlight()
}

// onRNR delays the retransmission by the larger of RTO and the timeout that the NACK asks for
// (Falcon §8.4.3.4). The NACK proves that the peer is alive.
func (c *receiver) onRNR(now Time, t *txn, index uint8) {
	if t.kind != TxnPush || t.resync != 0 {
		return
	}
	t.unlink()
	c.uncountAgain(t)
	c.parkAll(t)
	t.rnr, t.rnred = true, true
	t.retries, t.firstSent, c.lastRNR = 0, now, now
	c.e.wheel.Arm(&t.timer, t, timerRNR, now+max(c.rto(), wire.RNRTimeout(index)))
	if !t.done {
		u := c.emit(EvRNR)
		u.ev.RSN, u.ev.Tag = t.rsn, t.tag
	}
}

// parkAll releases the credits of a push that the peer's receiver was not ready for. On an ordered
// connection it also parks what waits behind the first such push: pulls whose request is
// acknowledged, and transactions that were not sent.
func (c *receiver) parkAll(t *txn) {
	if c.parked == 0 {
		c.parkRSN = t.rsn
	}
	c.park(t)
	if !c.ordered || int32(t.rsn-c.parkRSN) > 0 {
		return
	}
	c.parkRSN = t.rsn
	for rsn := t.rsn + 1; rsn != c.nextRSN; rsn++ {
		if later := c.txns.Get(rsn); !later.done && (later.state == pullReqAckd || later.firstSent < 0 && later.in != inNone) {
			c.park(later)
		}
	}
}

// onRefused ends a transaction that the target does not accept. A Resync fills the hole, and when
// it is acknowledged the transaction completes (Falcon §8.4.3.5). A pull whose request is
// acknowledged leaves no hole and completes at once.
func (c *receiver) onRefused(t *txn, code wire.ResyncCode, completion Completion, ulpCode uint8) {
	if t.resync != 0 || t.done {
		return
	}
	t.ulpCode = ulpCode
	if t.packetDone {
		c.complete(t, completion)
		return
	}
	c.resync(t, code, completion)
}

// onResync processes a Resync (Falcon §9.2.5): its PSN is acknowledged, and its RSN is skipped.
func (c *receiver) onResync(now Time, r *wire.Resync) wire.Drop {
	w, ack, rx := &c.dataRx, &c.dataBits.ack, &c.dataBits.rx
	if r.Original == wire.TypePullRequest {
		w, ack, rx = &c.reqRx, &c.reqBits, &c.reqBits
	}
	d := w.check(rx, r.PSN)
	switch d {
	case wire.DropNone:
	case wire.DropDuplicate:
		if bit(ack, r.PSN-w.base) {
			c.ackSoon()
			return d
		}
	case wire.DropBehindWindow:
		c.ackSoon()
		return d
	default:
		c.coalesce(now, wholePacket)
		return d
	}
	if r.Original == wire.TypePullData {
		c.pullDataGone(r.RSN, r.Code)
	} else if !c.skip(r.RSN, r.PSN, r.Original == wire.TypePushData) {
		c.queueNack(nackEntry{psn: r.PSN, code: wire.NackResource, request: r.Original == wire.TypePullRequest})
		return wire.DropResource
	}
	w.acknowledge(ack, rx, r.PSN)
	c.ackSoon()
	return d
}

// pullDataGone completes a pull whose response the target will not deliver.
func (c *receiver) pullDataGone(rsn uint32, code wire.ResyncCode) {
	t := c.pullOf(rsn)
	if t == nil {
		return
	}
	c.implicitAck(t)
	if code == wire.ResyncCID {
		c.complete(t, CmplTargetNackCID)
		return
	}
	c.complete(t, CmplRemoteErr)
}

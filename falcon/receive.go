package falcon

import (
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
		c.rx.ecn++
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
		return c.target.onPush(now, &e.push.Header, payload)
	case wire.TypePullRequest:
		m, payload, d := wire.ParsePullRequest(p.Data)
		if d == wire.DropNone {
			d = c.accept(now, p, &m.Header)
		}
		if d != wire.DropNone {
			return d
		}
		return c.target.onPullRequest(now, &m, payload)
	case wire.TypePullData:
		m, payload, d := wire.ParsePullData(p.Data)
		if d == wire.DropNone {
			d = c.accept(now, p, &m.Header)
		}
		if d != wire.DropNone {
			return d
		}
		return c.initiator.onPullData(now, &m.Header, payload)
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
func (c *Conn) accept(now Time, p *Packet, h *wire.Header) wire.Drop {
	if h.Function != c.cfg.LocalFunction {
		return wire.DropFunction
	}
	if h.Protocol != c.cfg.Protocol {
		return wire.DropProtocol
	}
	c.rx.lastT1, c.rx.lastT2, c.rx.lastHops = p.T1, FalconTime(now), p.Hops
	if h.DataBase == c.flight.data.base && h.ReqBase == c.flight.requests.base {
		return wire.DropNone
	}
	if c.flight.checkBases(h.DataBase, h.ReqBase) != wire.DropNone {
		c.e.stats.IgnoredAcks++
		return wire.DropNone
	}
	c.flight.advanceBases(h.DataBase, h.ReqBase, nil)
	c.enqueue()
	return wire.DropNone
}

// onAck processes a BACK or EACK (Falcon §9.2.3).
func (c *Conn) onAck(now Time, p *Packet, a *wire.Ack) wire.Drop {
	if d := c.flight.checkBases(a.DataBase, a.ReqBase); d != wire.DropNone {
		return d
	}
	times := ackTimes{now: now, t1: a.T1}
	c.flight.advanceBases(a.DataBase, a.ReqBase, &times)
	lost := false
	c.e.stats.AcksReceived++
	if a.Extended {
		c.e.stats.ExtendedAcksReceived++
		if a.DataOWN || a.ReqOWN {
			c.e.stats.OWNReceived++
		}
		c.flight.ackBits(&c.flight.data, a.DataBase, a.DataAck.Lo, &times)
		c.flight.ackBits(&c.flight.data, a.DataBase+64, a.DataAck.Hi, &times)
		c.flight.ackBits(&c.flight.requests, a.ReqBase, a.Req, &times)
		c.flight.noteReceived(a.DataBase, a.DataAck, a.DataRx, &times)
		req := wire.Bitmap128{Lo: a.Req}
		lost = c.flight.recoverLosses(now, &c.flight.data, a.DataBase, &a.DataRx, a.DataOWN)
		lost = c.flight.recoverLosses(now, &c.flight.requests, a.ReqBase, &req, a.ReqOWN) || lost
	}
	c.flight.findLost(now)
	c.flight.probeFrom, c.flight.probes = now, 0
	ev := c.e.rate.delaySample(now, p, rue.TypeAck, a.T1, a.T2, &a.Congestion)
	ev.Eack, ev.EackDrop, ev.EackOwn = a.Extended, lost, a.DataOWN || a.ReqOWN
	c.e.rate.raise(now, c)
	if c.flight.cc.delayTooLong(now) {
		c.emit(EvLongPath)
	}
	c.flight.arm()
	c.enqueue()
	return wire.DropNone
}

// onNack processes a NACK (Falcon §9.2.4, §11).
func (c *Conn) onNack(now Time, p *Packet, n *wire.Nack) wire.Drop {
	if d := c.flight.checkBases(n.DataBase, n.ReqBase); d != wire.DropNone {
		return d
	}
	c.e.stats.NacksReceived++
	countNack(&c.e.stats.NackCodesReceived, n.Code)
	// Find the transaction before the bases move: a pull request that the target's ULP refused is
	// acknowledged by them.
	t := c.nacked(n)
	c.flight.advanceBases(n.DataBase, n.ReqBase, nil)
	c.e.rate.delaySample(now, p, rue.TypeNack, n.T1, n.T2, &n.Congestion).NackCode = uint8(n.Code)
	c.e.rate.raise(now, c)
	defer c.enqueue()
	if !n.Code.Valid() {
		return wire.DropNackCode
	}
	if t == nil || t.conn != c {
		return wire.DropNackTarget
	}
	switch n.Code {
	case wire.NackResource:
		c.flight.onNoRoom(now, t)
	case wire.NackRNR:
		c.initiator.onRNR(now, t, n.RNR)
	case wire.NackXLR:
		c.initiator.onRefused(t, wire.ResyncRemoteXLR, CmplRemoteErr, 0)
	case wire.NackCIE:
		c.initiator.onRefused(t, wire.ResyncCIE, CmplTargetNackCIE, n.ULPCode)
	case wire.NackNRE:
		c.initiator.onRefused(t, wire.ResyncNRE, CmplTargetNackNRE, n.ULPCode)
	case wire.NackCID:
		c.initiator.onRefused(t, wire.ResyncCID, CmplTargetNackCID, n.ULPCode)
	}
	return wire.DropNone
}

// nacked returns the transaction that a NACK refers to, from its window or from the pulls that wait
// for data. PSNs that the same packet acknowledges count as acknowledged.
func (c *Conn) nacked(n *wire.Nack) *txn {
	w, base := &c.flight.data, n.DataBase
	if n.Request {
		w, base = &c.flight.requests, n.ReqBase
	}
	t := w.at(n.PSN)
	if !n.Request {
		if int32(n.PSN-base) < 0 {
			return nil
		}
		return t
	}
	if t != nil || n.Code == wire.NackResource || n.Code == wire.NackRNR {
		return t
	}
	for rsn := c.initiator.base; rsn != c.initiator.next; rsn++ {
		if t := c.initiator.txns.Get(rsn); t.state == pullReqAckd && t.psn == n.PSN && !t.done {
			return t
		}
	}
	return nil
}

// onResync processes a Resync (Falcon §9.2.5): its PSN is acknowledged, and its RSN is skipped.
func (c *Conn) onResync(now Time, r *wire.Resync) wire.Drop {
	w := &c.rx.data
	if r.Original == wire.TypePullRequest {
		w = &c.rx.requests
	}
	d := w.classify(r.PSN)
	switch d {
	case wire.DropNone:
	case wire.DropDuplicate:
		if w.isAcked(r.PSN) {
			c.rx.ackSoon()
			return d
		}
	case wire.DropBehindWindow:
		c.rx.ackSoon()
		return d
	default:
		c.rx.coalesce(now, wholePacket)
		return d
	}
	if r.Original == wire.TypePullData {
		c.initiator.pullDataGone(r.RSN, r.Code)
	} else if !c.target.skip(r.RSN, r.PSN, r.Original == wire.TypePushData) {
		c.rx.queueNack(nackEntry{psn: r.PSN, code: wire.NackResource, request: r.Original == wire.TypePullRequest})
		return wire.DropResource
	}
	w.acknowledge(r.PSN)
	c.rx.ackSoon()
	return d
}

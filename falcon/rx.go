package falcon

import "github.com/falcon-vnic/vnic/falcon/wire"

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

// onPullData completes a pull of the initiator (Falcon §8.4.3.2).
func (c *receiver) onPullData(now Time, h *wire.Header, payload []byte) wire.Drop {
	if d := c.dataRx.check(&c.dataBits.rx, h.PSN); d != wire.DropNone {
		c.coalesce(now, wholePacket)
		return d
	}
	t := c.pullOf(h.RSN)
	verdict := wire.DropNone
	switch {
	case t == nil:
		verdict = wire.DropUnknownRSN
	case len(payload) > int(t.pullLength):
		verdict = wire.DropPullLength
	case c.ordered && h.RSN != c.baseRSN:
		t.cell = c.e.contexts.cells.copyData(c.self(), payload)
		t.data = t.cell.buf
	default:
		t.data = payload
	}
	c.dataRx.acknowledge(&c.dataBits.ack, &c.dataBits.rx, h.PSN)
	c.received(now, h)
	if t == nil {
		return verdict
	}
	c.implicitAck(t)
	if verdict != wire.DropNone {
		c.complete(t, CmplOpErr)
		return verdict
	}
	t.state = pullDataRx
	c.complete(t, CmplAck)
	return verdict
}

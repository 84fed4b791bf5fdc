package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// onPush receives push data at the target (Falcon §8.5.3.3).
func (c *transactions) onPush(now Time, h *wire.Header, payload []byte) wire.Drop {
	switch d := c.dataRx.check(&c.dataBits.rx, h.PSN); d {
	case wire.DropNone:
	case wire.DropDuplicate:
		return c.onPushAgain(now, h, payload)
	default:
		c.coalesce(now, wholePacket)
		return d
	}
	if d := c.checkRSN(h.RSN); d != wire.DropNone {
		if d == wire.DropResource {
			c.queueNack(nackEntry{psn: h.PSN, code: wire.NackResource})
		}
		return d
	}
	head := !c.ordered || h.RSN == c.targetNext
	refuse := !head && c.refusesLater()
	var k *cell
	if !c.admit(head, h.PSN == c.dataRx.base) {
		return c.refuseResource(h.PSN, false)
	}
	if !head && !refuse && !c.copyPayload(&k, payload) {
		c.returnOne(credit.NetPktRx)
		return c.refuseResource(h.PSN, false)
	}
	rx := c.e.contexts.newRx(c.self())
	rx.push, rx.rsn, rx.psn, rx.ackReq, rx.since = true, h.RSN, h.PSN, h.AckReq, now
	c.rxs.Put(c.targetBase, rx.rsn, rx)
	c.requests++
	setBit(&c.dataBits.rx, h.PSN-c.dataRx.base)
	c.coalesce(now, halfPacket)
	if !head && h.AckReq {
		c.ackSoon()
	}
	switch {
	case refuse:
		rx.state, rx.nack, rx.rnr = rxNotReady, wire.NackRNR, c.holdRNR
		c.nackAgain(rx)
		c.watchPeer(now)
		return wire.DropNotReady
	case !head:
		rx.wait(k)
		c.watchPeer(now)
	default:
		rx.data = payload
		c.deliver(rx)
	}
	return wire.DropNone
}

// onPushAgain handles push data received before. It is a duplicate unless the push was refused.
func (c *transactions) onPushAgain(now Time, h *wire.Header, payload []byte) wire.Drop {
	rx := c.rxs.At(c.targetBase, h.RSN)
	if bit(&c.dataBits.ack, h.PSN-c.dataRx.base) || rx == nil || rx == doneRx || rx.psn != h.PSN || !rx.push {
		c.coalesce(now, wholePacket)
		return wire.DropDuplicate
	}
	switch {
	case rx.state == rxRefused: // the NACK was lost (Falcon §6.6.5)
		c.nackAgain(rx)
		return wire.DropDuplicate
	case rx.state != rxNotReady:
		c.coalesce(now, wholePacket)
		return wire.DropDuplicate
	}
	rx.ackReq, rx.since = h.AckReq, now
	if !c.ordered || rx.rsn == c.targetNext {
		rx.data = payload
		c.coalesce(now, halfPacket)
		c.deliver(rx)
		return wire.DropNone
	}
	var k *cell
	if c.refusesLater() || !c.copyPayload(&k, payload) {
		c.nackAgain(rx)
		return wire.DropNotReady
	}
	rx.wait(k)
	c.coalesce(now, halfPacket)
	return wire.DropNone
}

// onPullRequest receives a pull request at the target (Falcon §8.5.3.1).
func (c *transactions) onPullRequest(now Time, m *wire.PullRequest, payload []byte) wire.Drop {
	h := &m.Header
	if len(payload) > MaxPullHeader {
		return wire.DropLength
	}
	if d := c.reqRx.check(&c.reqBits, h.PSN); d != wire.DropNone {
		c.coalesce(now, wholePacket)
		return d
	}
	d := c.checkRSN(h.RSN)
	if d != wire.DropNone && d != wire.DropResource {
		return d
	}
	head := !c.ordered || h.RSN == c.targetNext
	if d == wire.DropResource {
		c.queueNack(nackEntry{psn: h.PSN, code: wire.NackResource, request: true})
		return d
	}
	if c.requests+c.responses >= 2*MaxTxWindow || !c.admit(head, false) {
		return c.refuseResource(h.PSN, true)
	}
	rx := c.e.contexts.newRx(c.self())
	rx.rsn, rx.psn, rx.length, rx.since = h.RSN, h.PSN, int(m.RequestLength), now
	rx.data = rx.inline[:copy(rx.inline[:], payload)]
	c.rxs.Put(c.targetBase, rx.rsn, rx)
	c.requests++
	c.reqRx.acknowledge(&c.reqBits, &c.reqBits, h.PSN)
	c.received(now, h)
	if head {
		c.deliver(rx)
	} else {
		rx.state = rxWaiting
		c.watchPeer(now)
	}
	return wire.DropNone
}

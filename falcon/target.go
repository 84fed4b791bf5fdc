package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// rxState is the state of a transaction at the target (Falcon §8.5.1). RespondPull acknowledges a
// pull and supplies its data in one call, so the state PullReqUlpAckd takes no time. From
// PullDataUlpRx on the transaction is a txn.
type rxState uint8

const (
	rxWaiting  rxState = iota // received, waits for earlier RSNs (PullReqRx, PushDataRx)
	rxQueued                  // its event waits for Next
	rxULP                     // with the ULP (PullReqUlpTx, PushReqUlpTx)
	rxNotReady                // RNR: a push waits for its retransmission, a pull for its timer
	rxRefused                 // push answered with another NACK: waits for the Resync
	rxDone                    // answered (PushReqUlpAckd, PullReqUlpAckd), or skipped by a Resync
)

// MaxPullHeader is the maximum of ULP header bytes in a pull request. They are kept in the
// request's context, so a pull never needs a cell.
const MaxPullHeader = 128

// rxTxn is a request received from the network, from its arrival to the ULP's answer. data is the
// payload. For a push it is in the receive buffer, until the event is taken, or in cell; for a pull
// it is in inline.
type rxTxn struct {
	conn     *Conn
	timer    timer.Handle // pull under RNR
	data     []byte
	cell     *cell
	rsn, psn uint32
	gen      uint32 // incremented when the context is reused
	since    Time   // since when the peer has left it waiting
	length   int    // pull: bytes requested
	state    rxState
	push     bool
	ackReq   bool
	nack     wire.NackCode
	rnr      uint8
	ulpCode  uint8
	inline   [MaxPullHeader]byte
}

// doneRx marks RSNs that are answered while older ones are not.
var doneRx = &rxTxn{state: rxDone}

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

// deliver queues the event of a request whose turn has come, and of the requests that waited for
// it.
func (c *outcome) deliver(rx *rxTxn) {
	c.queueRequest(rx)
	if c.ordered && !c.hold {
		c.targetNext++
		c.deliverInOrder()
	}
}

func (c *outcome) queueRequest(rx *rxTxn) {
	rx.state = rxQueued
	if rx.cell != nil {
		rx.cell.rx = nil // it no longer waits
	}
	u := c.emit(EvPull)
	u.ev.RSN, u.ev.Length, u.rx, u.gen = rx.rsn, rx.length, rx, rx.gen
	if rx.push {
		u.ev.Kind, u.ev.Length = EvPush, len(rx.data)
	}
}

// deliverInOrder delivers waiting requests from targetNext on (Falcon §8.5.2).
func (c *outcome) deliverInOrder() {
	if !c.ordered {
		return
	}
	for !c.hold {
		rx := c.rxs.At(c.targetBase, c.targetNext)
		if rx == nil || rx.state == rxNotReady {
			return
		}
		if rx.state == rxWaiting {
			c.queueRequest(rx)
		}
		c.targetNext++
	}
}

func (c *outcome) redeliver(rx *rxTxn) {
	if !c.ordered || rx.rsn == c.targetNext {
		c.deliver(rx)
		return
	}
	rx.state = rxWaiting
}

// take moves the payload of a queued request into the event and returns its cell. It returns false
// if the request was withdrawn meanwhile.
func (rx *rxTxn) take(gen uint32, ev *Event) (k *cell, ok bool) {
	if rx.gen != gen || rx.state != rxQueued {
		return nil, false
	}
	rx.state = rxULP
	ev.Data = rx.data
	if rx.push { // a pull keeps its headers for redelivery
		k, rx.cell, rx.data = rx.cell, nil, nil
	}
	return k, true
}

// wait keeps a push, with its payload in k, until earlier ones are delivered.
func (rx *rxTxn) wait(k *cell) {
	rx.state, rx.cell, rx.data, k.rx = rxWaiting, k, k.buf, rx
}

// withdraw takes back a request whose event Next has not returned yet.
func (rx *rxTxn) withdraw() {
	rx.gen++ // invalidates its event in the queue
	rx.state = rxWaiting
}

// skip removes an RSN from the order of the target, because its request will never come or is
// withdrawn. It returns false if the RSN is too far ahead to be remembered.
func (c *outcome) skip(rsn, psn uint32, push bool) bool {
	n := rsn - c.targetBase
	if int32(n) < 0 {
		return true
	}
	if n >= MaxTxWindow {
		return false
	}
	rx := c.rxs.At(c.targetBase, rsn)
	if rx != nil && (rx == doneRx || rx.psn != psn || rx.push != push) {
		return true // answered already, or used by another packet
	}
	if rx == nil {
		c.rxs.Put(c.targetBase, rsn, doneRx)
	} else {
		c.dropRx(rx)
	}
	if c.hold && c.targetNext == rsn {
		c.hold = false
	}
	c.deliverInOrder()
	c.retire()
	return true
}

// An ordered connection stops at a request that the ULP does not take now, in one of two ways. If
// the ULP was not ready (RNR), the request holds the connection: the request and all later pushes
// are NACKed until the ULP accepts it (Falcon §8.5.3.4). If the ULP defers the request, which must
// be a pull, later requests only wait, as they would for a late packet. Either way targetNext is
// the RSN of the request.

// holdFrom holds the connection at a request that the ULP was not ready for, for the first time or
// once more. Later pushes are NACKed too. Later pulls are already acknowledged and wait.
func (c *outcome) holdFrom(rx *rxTxn) {
	if !c.ordered || int32(rx.rsn-c.targetNext) > 0 || rx.rsn == c.targetNext && !c.hold {
		return
	}
	c.targetNext, c.hold, c.holdRNR = rx.rsn, true, rx.rnr
	for n := range c.rxs.Capacity() {
		later := c.rxs.At(c.targetBase, rx.rsn+n) // rx itself is not ready
		if later == nil || later.state != rxQueued && later.state != rxWaiting {
			continue
		}
		later.withdraw()
		if later.push {
			later.dropPayload()
			later.state, later.nack, later.rnr, later.since = rxNotReady, wire.NackRNR, rx.rnr, rx.since
			c.nackAgain(later)
		}
	}
}

// endHold continues behind rx, if rx held the connection, now that the ULP has given its final
// answer to it.
func (c *outcome) endHold(rx *rxTxn) {
	if c.hold && rx.rsn == c.targetNext {
		c.hold = false
		c.targetNext++
		c.deliverInOrder()
	}
}

// refusesLater reports whether pushes behind the request that holds the connection are NACKed.
// While the ULP has that request again, later pushes wait for its answer: they usually arrived
// together with it, and a NACK would cost them another timeout (TestTheHeldWaitWhileTheULPDecides).
func (c *outcome) refusesLater() bool {
	if !c.hold || c.e.profile.NackHeld {
		return c.hold
	}
	head := c.rxs.At(c.targetBase, c.targetNext)
	return head == nil || head.state != rxQueued && head.state != rxULP
}

// nackAgain queues the NACK of a refused push.
func (c *outcome) nackAgain(rx *rxTxn) {
	c.queueNack(nackEntry{psn: rx.psn, code: rx.nack, rnr: rx.rnr, ulpCode: rx.ulpCode})
}

// keep copies the payload of a withdrawn push out of the receive buffer. If there is no room, the
// push is forgotten and the peer sends it again.
func (c *outcome) keep(rx *rxTxn) {
	k := rx.cell
	if k == nil && !c.copyPayload(&k, rx.data) {
		c.refuseResource(rx.psn, false)
		c.forget(rx)
		return
	}
	rx.wait(k)
}

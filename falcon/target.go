package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// requestState is the state of a transaction at the target (Falcon §8.5.1). RespondPull
// acknowledges a pull and supplies its data in one call, so the state PullReqUlpAckd takes no time.
// From PullDataUlpRx on the transaction is a txn.
type requestState uint8

const (
	requestWaiting  requestState = iota // received, waits for earlier RSNs (PullReqRx, PushDataRx)
	requestQueued                       // its event waits for Next
	requestWithULP                      // with the ULP (PullReqUlpTx, PushReqUlpTx)
	requestNotReady                     // RNR: a push waits for its retransmission, a pull for its timer
	requestRefused                      // push answered with another NACK: waits for the Resync
	requestDone                         // answered (PushReqUlpAckd, PullReqUlpAckd), or skipped by a Resync
)

// MaxPullHeader is the maximum of ULP header bytes in a pull request. They are kept in the
// request's context, so a pull never needs a cell.
const MaxPullHeader = 128

// request is a request received from the network, from its arrival to the ULP's answer. data is the
// payload. For a push it is in the receive buffer, until the event is taken, or in cell; for a pull
// it is in inline.
type request struct {
	conn     *Conn
	timer    timer.Handle // pull under RNR
	data     []byte
	cell     *cell
	rsn, psn uint32
	gen      uint32 // incremented when the context is reused
	since    Time   // since when the peer has left it waiting
	length   int    // pull: bytes requested
	state    requestState
	push     bool
	ackReq   bool
	nack     wire.NackCode
	rnr      uint8
	ulpCode  uint8
	inline   [MaxPullHeader]byte
}

// doneRequest marks RSNs that are answered while older ones are not.
var doneRequest = &request{state: requestDone}

// target holds the peer's requests, in the order of their RSNs (Falcon §8.5).
type target struct {
	conn       *Conn
	rx         *receiver            // of the requests
	base, next uint32               // BRSN: oldest not answered; NRSN: next to deliver
	pending    ring.Window[request] // by RSN
	unanswered int32                // requests not answered
	responses  int32                // pull responses not acknowledged

	held    bool  // ordered: the ULP was not ready for RSN next, nothing later is delivered
	heldRNR uint8 // timeout index that the ULP gave

	timer       timer.Handle // fires no later than when something held for the peer may be reclaimed
	reclaimNext uint32       // next when the timer last fired
}

// onPush receives push data (Falcon §8.5.3.3).
func (tgt *target) onPush(now Time, h *wire.Header, payload []byte) wire.Drop {
	if len(payload) > tgt.conn.cfg.MTU {
		return wire.DropLength
	}
	switch d := tgt.rx.data.classify(h.PSN); d {
	case wire.DropNone:
	case wire.DropDuplicate:
		return tgt.onPushAgain(now, h, payload)
	default:
		tgt.rx.coalesce(now, wholePacket)
		return d
	}
	if d := tgt.checkRSN(h.RSN); d != wire.DropNone {
		if d == wire.DropResource {
			tgt.rx.queueNack(nackEntry{psn: h.PSN, code: wire.NackResource})
		}
		return d
	}
	head := !tgt.conn.cfg.Ordered || h.RSN == tgt.next
	refuse := !head && tgt.refusesLater()
	if !tgt.admit(head, h.PSN == tgt.rx.data.base) {
		return tgt.refuseResource(h.PSN, false)
	}
	var k *cell
	if !head && !refuse {
		if k = tgt.copyRequest(payload); k == nil {
			tgt.conn.credits.returnOne(credit.NetPktRx)
			return tgt.refuseResource(h.PSN, false)
		}
	}
	req := tgt.conn.e.contexts.newRequest(tgt.conn)
	req.push, req.rsn, req.psn, req.ackReq, req.since = true, h.RSN, h.PSN, h.AckReq, now
	tgt.pending.Put(tgt.base, req.rsn, req)
	tgt.unanswered++
	tgt.rx.data.receive(h.PSN)
	tgt.rx.coalesce(now, halfPacket)
	if !head && h.AckReq {
		tgt.rx.ackSoon()
	}
	switch {
	case refuse:
		req.state, req.nack, req.rnr = requestNotReady, wire.NackRNR, tgt.heldRNR
		tgt.nackRefused(req)
		tgt.armReclaim(now)
		return wire.DropNotReady
	case !head:
		req.wait(k)
		tgt.armReclaim(now)
	default:
		req.data = payload
		tgt.deliver(req)
	}
	return wire.DropNone
}

// onPushAgain handles push data received before. It is a duplicate unless the push was refused.
func (tgt *target) onPushAgain(now Time, h *wire.Header, payload []byte) wire.Drop {
	req := tgt.pending.At(tgt.base, h.RSN)
	if tgt.rx.data.isAcked(h.PSN) || req == nil || req == doneRequest || req.psn != h.PSN || !req.push {
		tgt.rx.coalesce(now, wholePacket)
		return wire.DropDuplicate
	}
	switch {
	case req.state == requestRefused: // the NACK was lost (Falcon §6.6.5)
		tgt.nackRefused(req)
		return wire.DropDuplicate
	case req.state != requestNotReady:
		tgt.rx.coalesce(now, wholePacket)
		return wire.DropDuplicate
	}
	req.ackReq, req.since = h.AckReq, now
	if !tgt.conn.cfg.Ordered || req.rsn == tgt.next {
		req.data = payload
		tgt.rx.coalesce(now, halfPacket)
		tgt.deliver(req)
		return wire.DropNone
	}
	var k *cell
	if !tgt.refusesLater() {
		k = tgt.copyRequest(payload)
	}
	if k == nil {
		tgt.nackRefused(req)
		return wire.DropNotReady
	}
	req.wait(k)
	tgt.rx.coalesce(now, halfPacket)
	return wire.DropNone
}

// onPullRequest receives a pull request (Falcon §8.5.3.1).
func (tgt *target) onPullRequest(now Time, m *wire.PullRequest, payload []byte) wire.Drop {
	h := &m.Header
	if len(payload) > MaxPullHeader {
		return wire.DropLength
	}
	if d := tgt.rx.requests.classify(h.PSN); d != wire.DropNone {
		tgt.rx.coalesce(now, wholePacket)
		return d
	}
	if d := tgt.checkRSN(h.RSN); d != wire.DropNone {
		if d == wire.DropResource {
			tgt.rx.queueNack(nackEntry{psn: h.PSN, code: wire.NackResource, request: true})
		}
		return d
	}
	head := !tgt.conn.cfg.Ordered || h.RSN == tgt.next
	if tgt.unanswered+tgt.responses >= 2*MaxTxWindow || !tgt.admit(head, false) {
		return tgt.refuseResource(h.PSN, true)
	}
	req := tgt.conn.e.contexts.newRequest(tgt.conn)
	req.rsn, req.psn, req.length, req.since = h.RSN, h.PSN, int(m.RequestLength), now
	req.data = req.inline[:copy(req.inline[:], payload)]
	tgt.pending.Put(tgt.base, req.rsn, req)
	tgt.unanswered++
	tgt.rx.requests.acknowledge(h.PSN)
	tgt.rx.received(now, h)
	if head {
		tgt.deliver(req)
	} else {
		req.state = requestWaiting
		tgt.armReclaim(now)
	}
	return wire.DropNone
}

// deliver queues the event of a request whose turn has come, and of the requests that waited for
// it.
func (tgt *target) deliver(req *request) {
	tgt.queueRequest(req)
	if tgt.conn.cfg.Ordered && !tgt.held {
		tgt.next++
		tgt.deliverInOrder()
	}
}

func (tgt *target) queueRequest(req *request) {
	req.state = requestQueued
	if req.cell != nil {
		req.cell.req = nil // it no longer waits
	}
	u := tgt.conn.emit(EvPull)
	u.ev.RSN, u.ev.Length, u.req, u.gen = req.rsn, req.length, req, req.gen
	if req.push {
		u.ev.Kind, u.ev.Length = EvPush, len(req.data)
	}
}

// deliverInOrder delivers waiting requests from next on (Falcon §8.5.2).
func (tgt *target) deliverInOrder() {
	if !tgt.conn.cfg.Ordered {
		return
	}
	for !tgt.held {
		req := tgt.pending.At(tgt.base, tgt.next)
		if req == nil || req.state == requestNotReady {
			return
		}
		if req.state == requestWaiting {
			tgt.queueRequest(req)
		}
		tgt.next++
	}
}

// expired implements timerOwner: the delay of a pull ends.
func (req *request) expired(Time) { req.conn.target.redeliver(req) }

func (tgt *target) redeliver(req *request) {
	if !tgt.conn.cfg.Ordered || req.rsn == tgt.next {
		tgt.deliver(req)
		return
	}
	req.state = requestWaiting
}

// take moves the payload of a queued request into the event and returns its cell. It returns false
// if the request was withdrawn meanwhile.
func (req *request) take(gen uint32, ev *Event) (k *cell, ok bool) {
	if req.gen != gen || req.state != requestQueued {
		return nil, false
	}
	req.state = requestWithULP
	ev.Data = req.data
	if req.push { // a pull keeps its headers for redelivery
		k, req.cell, req.data = req.cell, nil, nil
	}
	return k, true
}

// wait keeps a push, with its payload in k, until earlier ones are delivered.
func (req *request) wait(k *cell) {
	req.state, req.cell, req.data, k.req = requestWaiting, k, k.buf, req
}

// withdraw takes back a request whose event Next has not returned yet.
func (req *request) withdraw() {
	req.gen++ // invalidates its event in the queue
	req.state = requestWaiting
}

// skip removes an RSN from the order of the target, because its request will never come or is
// withdrawn. It returns false if the RSN is too far ahead to be remembered.
func (tgt *target) skip(rsn, psn uint32, push bool) bool {
	n := rsn - tgt.base
	if int32(n) < 0 {
		return true
	}
	if n >= MaxTxWindow {
		return false
	}
	req := tgt.pending.At(tgt.base, rsn)
	if req != nil && (req == doneRequest || req.psn != psn || req.push != push) {
		return true // answered already, or used by another packet
	}
	if req == nil {
		tgt.pending.Put(tgt.base, rsn, doneRequest)
	} else {
		tgt.drop(req)
	}
	if tgt.held && tgt.next == rsn {
		tgt.held = false
	}
	tgt.deliverInOrder()
	tgt.retire()
	return true
}

// An ordered connection stops at a request that the ULP does not take now, in one of two ways. If
// the ULP was not ready (RNR), the request holds the connection: the request and all later pushes
// are NACKed until the ULP accepts it (Falcon §8.5.3.4). If the ULP defers the request, which must
// be a pull, later requests only wait, as they would for a late packet. Either way next is the RSN
// of the request.

// holdFrom holds the connection at a request that the ULP was not ready for, for the first time or
// once more. Later pushes are NACKed too. Later pulls are already acknowledged and wait.
func (tgt *target) holdFrom(req *request) {
	if !tgt.conn.cfg.Ordered || int32(req.rsn-tgt.next) > 0 || req.rsn == tgt.next && !tgt.held {
		return
	}
	tgt.next, tgt.held, tgt.heldRNR = req.rsn, true, req.rnr
	for n := range tgt.pending.Capacity() {
		later := tgt.pending.At(tgt.base, req.rsn+n) // req itself is not ready
		if later == nil || later.state != requestQueued && later.state != requestWaiting {
			continue
		}
		later.withdraw()
		if later.push {
			later.dropPayload()
			later.state, later.nack, later.rnr, later.since = requestNotReady, wire.NackRNR, req.rnr, req.since
			tgt.nackRefused(later)
		}
	}
}

// endHold continues behind req, if req held the connection, now that the ULP has given its final
// answer to it.
func (tgt *target) endHold(req *request) {
	if tgt.held && req.rsn == tgt.next {
		tgt.held = false
		tgt.next++
		tgt.deliverInOrder()
	}
}

// refusesLater reports whether pushes behind the request that holds the connection are NACKed.
// While the ULP has that request again, later pushes wait for its answer: they usually arrived
// together with it, and a NACK would cost them another timeout (TestTheHeldWaitWhileTheULPDecides).
func (tgt *target) refusesLater() bool {
	if !tgt.held || tgt.conn.e.profile.NackHeld {
		return tgt.held
	}
	head := tgt.pending.At(tgt.base, tgt.next)
	return head == nil || head.state != requestQueued && head.state != requestWithULP
}

// nackRefused queues the NACK of a refused push.
func (tgt *target) nackRefused(req *request) {
	tgt.rx.queueNack(nackEntry{psn: req.psn, code: req.nack, rnr: req.rnr, ulpCode: req.ulpCode})
}

// keep copies the payload of a withdrawn push out of the receive buffer. If there is no room, the
// push is forgotten and the peer sends it again.
func (tgt *target) keep(req *request) {
	k := req.cell
	if k == nil {
		k = tgt.copyRequest(req.data)
	}
	if k == nil {
		tgt.refuseResource(req.psn, false)
		tgt.forget(req)
		return
	}
	req.wait(k)
}

// forget removes a push as if it had never been received.
func (tgt *target) forget(req *request) {
	tgt.rx.data.forget(req.psn)
	tgt.pending.Clear(req.rsn)
	tgt.unanswered--
	tgt.conn.putRequest(req)
}

func (tgt *target) drop(req *request) {
	tgt.pending.Put(tgt.base, req.rsn, doneRequest)
	tgt.unanswered--
	tgt.conn.putRequest(req)
}

// retire advances base over all answered requests. On an ordered connection it cannot pass next,
// whose request has not been delivered: deliverInOrder has already advanced next over what a Resync
// skipped.
func (tgt *target) retire() {
	for tgt.pending.Get(tgt.base) == doneRequest {
		tgt.pending.Clear(tgt.base)
		tgt.base++
	}
}

package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// withULP returns the request with that RSN if the ULP has it and has not answered, else nil.
func (tgt *target) withULP(rsn uint32) *request {
	req := tgt.pending.At(tgt.base, rsn)
	if req == nil || req.state != requestWithULP {
		return nil
	}
	return req
}

// AckPush accepts a push that EvPush delivered. Its packet is acknowledged to the peer only now
// (Falcon §6.1.1.1). An unknown RSN is ignored, because the initiator may have withdrawn the push.
func (c *Conn) AckPush(now Time, rsn uint32) {
	c.target.ackPush(now, rsn)
}

func (tgt *target) ackPush(now Time, rsn uint32) {
	req := tgt.withULP(rsn)
	if req == nil || !req.push {
		return
	}
	tgt.rx.data.acknowledge(req.psn)
	tgt.rx.coalesce(now, halfPacket)
	if req.ackReq {
		tgt.rx.ackSoon()
	}
	tgt.finish(req)
}

// NackPush refuses a push that EvPush delivered. After wire.NackRNR the peer sends the push again
// when the timeout of index rnr has passed, and an ordered connection delivers nothing later before
// then. NackCIE (Falcon §8.5.3.5), NackNRE, NackCID and NackXLR end the push with ulpCode. NackCID
// and NackXLR may also refuse a pull.
func (c *Conn) NackPush(now Time, rsn uint32, code wire.NackCode, rnr, ulpCode uint8) {
	c.target.nackPush(now, rsn, code, rnr, ulpCode)
}

func (tgt *target) nackPush(now Time, rsn uint32, code wire.NackCode, rnr, ulpCode uint8) {
	req := tgt.withULP(rsn)
	if req == nil {
		return
	}
	if !req.push {
		if code == wire.NackRNR {
			tgt.rnrPull(now, rsn, rnr)
			return
		}
		tgt.rx.queueNack(nackEntry{psn: req.psn, code: code, ulpCode: ulpCode, request: true})
		resync := wire.ResyncRemoteXLR
		if code == wire.NackCID {
			resync = wire.ResyncCID
		}
		tgt.refusePull(now, req, resync)
		return
	}
	req.nack, req.rnr, req.ulpCode = code, rnr, ulpCode
	if code == wire.NackRNR {
		req.state, req.since = requestNotReady, now+wire.RNRTimeout(rnr)
		tgt.holdFrom(req)
	} else {
		req.state, req.since = requestRefused, now
		tgt.endHold(req)
	}
	tgt.nackRefused(req)
	tgt.armReclaim(now)
}

// refusePull ends a pull that gets no data. The pull request is already acknowledged, so the
// initiator would never ask again for a lost NACK. Therefore a Resync is sent in place of the Pull
// Data; it is retransmitted until it is acknowledged.
func (tgt *target) refusePull(now Time, req *request, code wire.ResyncCode) {
	t := tgt.conn.e.contexts.newTxn(tgt.conn, TxnPullData)
	t.rsn, t.state, t.started, t.refusal = req.rsn, pullDataUlpRx, now, true
	t.makeResync(code, CmplRemoteErr)
	tgt.responses++
	tgt.queueResponse(t)
	tgt.finish(req)
}

// finish removes a request that was answered, or that a Resync withdrew.
func (tgt *target) finish(req *request) {
	tgt.endHold(req)
	tgt.drop(req)
	tgt.retire()
	tgt.conn.checkDrained()
}

// RespondPull answers a pull that EvPull delivered (Falcon §8.5.3.2) with length bytes, which Fill
// writes when the packet is sent. Exactly one EvResponseDone with tag follows. RespondPull never
// fails for lack of credits: a response without credits waits inside the engine. It returns
// ErrTooLong if length is more than was requested, ErrNoTransaction if there is no such pull, and
// ErrClosed.
func (c *Conn) RespondPull(now Time, rsn uint32, tag uint64, length int) error {
	return c.target.respondPull(now, rsn, tag, length)
}

func (tgt *target) respondPull(now Time, rsn uint32, tag uint64, length int) error {
	if tgt.conn.closed {
		return ErrClosed
	}
	req := tgt.withULP(rsn)
	if req == nil || req.push {
		return ErrNoTransaction
	}
	if length < 0 || length > req.length || length > tgt.conn.cfg.MTU {
		return ErrTooLong
	}
	t := tgt.conn.e.contexts.newTxn(tgt.conn, TxnPullData)
	t.rsn, t.tag, t.length, t.state, t.started = rsn, tag, int32(length), pullDataUlpRx, now
	tgt.finish(req)
	tgt.responses++
	t.enlist(inStalled)
	tgt.startResponse(t, false)
	if t.in == inStalled {
		tgt.armReclaim(now)
	}
	return nil
}

// startResponse queues a stalled response for transmission if it can get credits. Credits are taken
// here, and not when the request is delivered, because later requests in RSN order must not wait
// for them: two nodes whose pushes fill each other's data windows would then wait for each other
// (Falcon §8.2.1.2). again means that the credits were refused before.
func (tgt *target) startResponse(t *txn, again bool) {
	cost := credit.PullDataCost(int(t.length), tgt.conn.e.cfg.CreditCell)
	switch {
	case !again && tgt.conn.credits.take(&cost), again && tgt.conn.credits.retake(&cost):
		t.cost = cost
	case tgt.conn.credits.aboveLimit(&cost):
		t.makeResync(wire.ResyncLocalXLR, CmplUlpCdtErr) // no data can ever go
	default:
		return
	}
	tgt.queueResponse(t)
}

// queueResponse queues a response, which may have been stalled, for transmission.
func (tgt *target) queueResponse(t *txn) {
	t.unlink()
	t.enlist(inUnsent)
	tgt.conn.queue(classTarget)
}

// RNRPull answers a pull that EvPull delivered with receiver-not-ready. The engine delivers the
// pull again after the timeout of index rnr (Falcon §8.5.3.4). The peer sees no sign of this,
// except that on an ordered connection later pushes are NACKed.
func (c *Conn) RNRPull(now Time, rsn uint32, rnr uint8) {
	c.target.rnrPull(now, rsn, rnr)
}

func (tgt *target) rnrPull(now Time, rsn uint32, rnr uint8) {
	req := tgt.withULP(rsn)
	if req == nil || req.push {
		return
	}
	req.rnr = rnr
	tgt.redeliverAt(req, now+wire.RNRTimeout(rnr))
	tgt.holdFrom(req)
}

// DeferPull postpones a pull that EvPull delivered: the engine delivers it again at the time until.
// An ordered connection delivers nothing later before that. It is meant for a ULP that is short of
// its own resources; the peer receives no answer.
func (c *Conn) DeferPull(now Time, rsn uint32, until Time) {
	c.target.deferPull(now, rsn, until)
}

func (tgt *target) deferPull(now Time, rsn uint32, until Time) {
	req := tgt.withULP(rsn)
	if req == nil || req.push {
		return
	}
	tgt.redeliverAt(req, max(until, now))
	if !tgt.conn.cfg.Ordered || int32(req.rsn-tgt.next) >= 0 {
		return
	}
	tgt.next = req.rsn
	for n := range tgt.pending.Capacity() {
		later := tgt.pending.At(tgt.base, req.rsn+n) // req itself is not ready
		if later == nil || later.state != requestQueued {
			continue
		}
		later.withdraw()
		if later.push {
			tgt.keep(later)
		}
	}
	tgt.armReclaim(now)
}

// redeliverAt schedules another delivery of a pull.
func (tgt *target) redeliverAt(req *request, at Time) {
	req.state, req.since = requestNotReady, at
	tgt.conn.e.arm(&req.timer, req, at)
}

// responseDone ends a pull response.
func (tgt *target) responseDone(t *txn, code Completion) {
	tgt.responses--
	if !t.refusal {
		u := tgt.conn.emit(EvResponseDone)
		u.ev.RSN, u.ev.Tag, u.ev.Code = t.rsn, t.tag, code
	}
	tgt.conn.putTxn(t)
}

package falcon

import "github.com/falcon-vnic/vnic/falcon/wire"

// makeResync turns the packet of t into a Resync (Falcon §9.1.8); its retransmission counters start
// anew.
func (t *txn) makeResync(code wire.ResyncCode, completion Completion) {
	t.resync, t.code = code, completion
	t.retries, t.firstSent, t.early, t.rnr = 0, -1, 0, false
}

// resync replaces the packet of t, which was sent, by a Resync with the same PSN and RSN.
func (c *Conn) resync(t *txn, code wire.ResyncCode, completion Completion) {
	t.makeResync(code, completion)
	c.sendLater(t)
}

// expireTxn completes a transaction that is too old; its packet, if not acknowledged, is replaced.
func (c *Conn) expireTxn(t *txn) {
	code := CmplLocalTO
	if t.resync != 0 {
		code = t.code
	} else if !t.packetDone {
		c.resync(t, wire.ResyncTimeout, CmplLocalTO)
	}
	c.complete(t, code)
}

// onResync processes a Resync (Falcon §9.2.5): its PSN counts as acknowledged, its RSN as taken.
func (c *Conn) onResync(now Time, r *wire.Resync) wire.Drop {
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

// pullDataGone completes the pull whose response the target does not deliver.
func (c *Conn) pullDataGone(rsn uint32, code wire.ResyncCode) {
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

// skip takes an RSN out of the order of the target: its request will never come, or is withdrawn.
// It returns false if the RSN is too far ahead to be remembered.
func (c *Conn) skip(rsn, psn uint32, push bool) bool {
	n := rsn - c.targetBase
	if int32(n) < 0 {
		return true
	}
	if n >= MaxTxWindow {
		return false
	}
	rx := c.rxs.At(c.targetBase, rsn)
	if rx != nil && (rx == doneRx || rx.psn != psn || rx.push != push) {
		return true // answered already, or another packet's
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

package falcon

// outcome completes transactions and delivers requests in RSN order. It also decides what the
// target has room for.
type outcome struct{ state }

// complete records the outcome of a transaction of the initiator and reports it. An ordered
// connection reports it once all earlier ones are reported (Falcon §8.4.2).
func (c *outcome) complete(t *txn, code Completion) {
	if t.done {
		return
	}
	t.done, t.code = true, code
	if !c.ordered {
		c.report(t)
		c.txns.Put(c.baseRSN, t.rsn, doneTxn)
		c.release(t)
	}
	for c.baseRSN != c.nextRSN {
		head := c.txns.Get(c.baseRSN)
		if !head.done {
			break
		}
		c.txns.Clear(c.baseRSN)
		c.baseRSN++
		c.e.waiting.recheck = true
		if head != doneTxn {
			c.report(head)
			c.release(head)
		}
	}
	c.checkDrained()
}

// report emits the completion event.
func (c *outcome) report(t *txn) {
	u := c.emit(EvPushDone)
	ev := &u.ev
	ev.RSN, ev.Tag, ev.Code, ev.ULPCode = t.rsn, t.tag, t.code, t.ulpCode
	c.e.stats.Completions[t.code]++
	if t.kind == TxnPull {
		ev.Kind = EvPullDone
		t.state = pullDataUlpTx
		if t.code == CmplAck {
			ev.Data, ev.Length = t.data, len(t.data)
		}
	} else {
		t.state = pushCplTx
	}
	u.cell, t.cell, t.data = t.cell, nil, nil
}

// release frees a transaction that was reported and whose packet is acknowledged or gone.
func (c *outcome) release(t *txn) {
	if !t.done || !t.packetDone {
		return
	}
	if c.txns.At(c.baseRSN, t.rsn) == t {
		return // still waits for earlier completions
	}
	c.putTxn(t)
}

// responseDone ends a pull response.
func (c *outcome) responseDone(t *txn, code Completion) {
	c.responses--
	if !t.refusal {
		u := c.emit(EvResponseDone)
		u.ev.RSN, u.ev.Tag, u.ev.Code = t.rsn, t.tag, code
	}
	c.putTxn(t)
}

// checkDrained is called whenever a transaction, request or acknowledgement of the connection has
// ended.
func (c *outcome) checkDrained() {
	if c.draining {
		c.endDrain()
	}
}

// endDrain emits EvDrained if a draining connection has nothing left to do.
func (c *outcome) endDrain() {
	if c.drained || c.closed {
		return
	}
	if c.baseRSN != c.nextRSN || c.reqTx.base != c.reqTx.next || c.dataTx.base != c.dataTx.next || c.requests+c.responses != 0 {
		return
	}
	if c.ackCount > 0 || c.busy&(wantAck|wantNack) != 0 {
		c.ackSoon() // otherwise the peer would wait for it
		return
	}
	c.drained = true
	c.emit(EvDrained)
}

package falcon

import "github.com/falcon-vnic/vnic/falcon/credit"

func (e *Engine) newTxn(c *Conn, kind TxnKind) *txn {
	t := reuse(&e.txnFree)
	e.txnsInUse++
	if kind == TxnPullData {
		e.responses++
	}
	*t = txn{conn: c, kind: kind, firstSent: -1, bypassed: -1}
	return t
}

// putTxn releases a transaction that is in no list, ring or timer.
func (e *Engine) putTxn(t *txn) {
	t.conn.returnCredits(&t.cost)
	e.txnsInUse--
	if t.kind == TxnPullData {
		e.responses--
	}
	*t = txn{}
	e.txnFree = append(e.txnFree, t)
	e.recheck = true
}

func (e *Engine) newRx(c *Conn) *rxTxn {
	rx := reuse(&e.rxFree)
	e.rxInUse++
	e.rxLevel.update(e.rxInUse)
	rx.conn = c
	return rx
}

// putRx releases a request context that is in no ring.
func (e *Engine) putRx(rx *rxTxn) {
	e.wheel.Stop(&rx.timer)
	rx.dropPayload(e)
	rx.conn.returnOne(credit.NetPktRx)
	e.rxInUse--
	e.rxLevel.update(e.rxInUse)
	rx.gen++
	rx.conn, rx.state, rx.ackReq, rx.push = nil, rxDone, false, false
	e.rxFree = append(e.rxFree, rx)
}

// reuse takes the context freed last, or makes one.
func reuse[T any](free *[]*T) *T {
	n := len(*free) - 1
	if n < 0 {
		return new(T)
	}
	v := (*free)[n]
	*free = (*free)[:n]
	return v
}

func (e *Engine) putCell(k *cell) {
	if k.request {
		k.conn.returnOne(credit.NetBufRx)
	}
	e.cells.put(k)
	e.cellLevel.update(e.cells.requests)
}

// dropPayload forgets the payload.
func (rx *rxTxn) dropPayload(e *Engine) {
	if rx.cell != nil {
		e.putCell(rx.cell)
	}
	rx.cell, rx.data = nil, nil
}

// forget makes a push one that never came.
func (c *Conn) forget(rx *rxTxn) {
	clearBit(&c.dataBits.rx, rx.psn-c.dataRx.base)
	c.rxs.Clear(rx.rsn)
	c.requests--
	c.e.putRx(rx)
}

func (c *Conn) dropRx(rx *rxTxn) {
	c.rxs.Put(c.targetBase, rx.rsn, doneRx)
	c.requests--
	c.e.putRx(rx)
}

// retire moves targetBase over everything answered. On an ordered connection it cannot pass
// targetNext, whose request is not even delivered: deliverInOrder has gone over what a Resync
// skipped.
func (c *Conn) retire() {
	for c.rxs.Get(c.targetBase) == doneRx {
		c.rxs.Clear(c.targetBase)
		c.targetBase++
	}
}

package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/pool"
)

// contexts holds the memory for transactions, requests of peers and payload. It counts them, limits
// them by Config and recycles them.
type contexts struct {
	limit     int // Config.TxContexts: transactions of initiators
	txnFree   pool.Pool[txn]
	txns      int // in use
	responses int // of txns: pull responses
	parked    int // of txns: wait for a peer that is not ready, limited by credit.Node.Park

	rxLimit int // Config.RxContexts
	rxFree  pool.Pool[rxTxn]
	rxs     int // in use
	rxLevel poolLevel

	cells     cellPool
	cellLevel poolLevel // of cells with requests
}

func newContexts(cfg *Config) contexts {
	return contexts{
		limit: cfg.TxContexts, rxLimit: cfg.RxContexts, rxLevel: newPoolLevel(&cfg.Profile.RxPackets, cfg.RxContexts),
		cells: cellPool{limit: cfg.RxCells, size: cfg.CellBytes}, cellLevel: newPoolLevel(&cfg.Profile.RxBuffers, cfg.RxCells),
	}
}

// room reports whether another transaction of an initiator can begin. Pull responses have contexts
// of their own (ULP Data of Falcon §8.2.2, CR rule 2); their number is limited by how many requests
// of peers were admitted. Parked transactions, which wait for a peer that is not ready, do not
// count either.
func (x *contexts) room() bool { return x.txns-x.responses-x.parked < x.limit }

// rxRoom returns how many more requests of peers fit.
func (x *contexts) rxRoom() int { return x.rxLimit - x.rxs }

// occupancy returns the level of the fuller of the two pools for requests from the network.
func (x *contexts) occupancy() uint8 { return max(x.rxLevel.quantised(), x.cellLevel.quantised()) }

func (x *contexts) newTxn(c *Conn, kind TxnKind) *txn {
	t := x.txnFree.Get()
	x.txns++
	if kind == TxnPullData {
		x.responses++
	}
	t.conn, t.kind, t.firstSent, t.bypassed = c, kind, -1, -1 // putTxn zeroed the rest
	return t
}

// putTxn releases a transaction that is in no list, ring or timer.
func (c *state) putTxn(t *txn) {
	x := &c.e.contexts
	if t.parked {
		c.credits.Forget(&t.cost)
		c.unparked(t)
	} else {
		c.returnCredits(&t.cost)
	}
	x.txns--
	if t.kind == TxnPullData {
		x.responses--
	}
	*t = txn{}
	x.txnFree.Put(t)
	c.e.waiting.recheck = true
}

func (x *contexts) newRx(c *Conn) *rxTxn {
	rx := x.rxFree.Get()
	x.rxs++
	x.rxLevel.update(x.rxs)
	rx.conn = c
	return rx
}

// putRx releases a request context that is in no ring.
func (c *state) putRx(rx *rxTxn) {
	c.e.wheel.Stop(&rx.timer)
	rx.dropPayload()
	c.returnOne(credit.NetPktRx)
	x := &c.e.contexts
	x.rxs--
	x.rxLevel.update(x.rxs)
	rx.gen++
	rx.conn, rx.state, rx.ackReq, rx.push = nil, rxDone, false, false
	x.rxFree.Put(rx)
}

func (c *state) putCell(k *cell) {
	x := &c.e.contexts
	if k.request {
		c.returnOne(credit.NetBufRx)
	}
	x.cells.put(k)
	x.cellLevel.update(x.cells.requests)
}

// dropPayload releases the payload.
func (rx *rxTxn) dropPayload() {
	if rx.cell != nil {
		rx.conn.putCell(rx.cell)
	}
	rx.cell, rx.data = nil, nil
}

// forget removes a push as if it had never been received.
func (c *state) forget(rx *rxTxn) {
	clearBit(&c.dataBits.rx, rx.psn-c.dataRx.base)
	c.rxs.Clear(rx.rsn)
	c.requests--
	c.putRx(rx)
}

func (c *state) dropRx(rx *rxTxn) {
	c.rxs.Put(c.targetBase, rx.rsn, doneRx)
	c.requests--
	c.putRx(rx)
}

// retire advances targetBase over all answered requests. On an ordered connection it cannot pass
// targetNext, whose request has not been delivered: deliverInOrder has already advanced targetNext
// over what a Resync skipped.
func (c *state) retire() {
	for c.rxs.Get(c.targetBase) == doneRx {
		c.rxs.Clear(c.targetBase)
		c.targetBase++
	}
}

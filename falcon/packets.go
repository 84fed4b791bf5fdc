package falcon

import "github.com/falcon-vnic/vnic/internal/ring"

func (c *state) window(kind TxnKind) *txWindow {
	if kind == TxnPull {
		return &c.reqTx
	}
	return &c.dataTx
}

// packets returns the unacknowledged packets of the window, by PSN.
func (c *state) packets(w *txWindow) *ring.Window[txn] {
	if w == &c.reqTx {
		return &c.reqPackets
	}
	return &c.dataPackets
}

// packetAt returns the transaction of an unacknowledged packet, nil if no such packet has that PSN.
func (c *state) packetAt(w *txWindow, psn uint32) *txn { return c.packets(w).At(w.base, psn) }

// assignPSN gives t the next PSN of the window.
func (c *state) assignPSN(w *txWindow, t *txn) {
	t.psn = w.next
	c.packets(w).Put(w.base, t.psn, t)
	w.next++
}

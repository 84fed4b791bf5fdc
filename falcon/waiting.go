package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/ring"
)

// transactions starts and answers the transactions that the ULPs of both ends request.
type transactions struct {
	delivery

	waitingCost credit.Cost // of the request refused with ErrXoff
}

// waiting holds the connections and responses that wait for credits or contexts.
type waiting struct {
	conns   ring.Queue[*Conn] // refused with ErrXoff
	stalled list.List[txn]    // pull responses that wait for credits
	offered []*Conn           // connections with EvCredit that did not issue yet
	hold    bool              // EvCredit is held back
	recheck bool              // something was freed since the connections were last examined
}

// wait puts the connection in the list of those that get EvCredit when there is room again. It goes
// to the end, or in front if it had been offered room that others took before it could. Otherwise
// the connections that come first might take all room every time.
func (c *transactions) wait(cost *credit.Cost, offered bool) {
	w := &c.e.waiting
	c.e.stats.Xoffs++
	c.waitingCost = *cost
	if c.waiting {
		return
	}
	c.waiting = true
	if offered {
		*w.conns.PushFront() = c.self()
	} else {
		*w.conns.Push() = c.self()
	}
}

// wake sends EvCredit to the waiting connections that could now issue what they were refused. The
// longest waiting come first, and no more are woken than can issue together. It is called only
// after something was freed.
func (w *waiting) wake() {
	if w.hold {
		return
	}
	w.recheck = false
	w.wakeStalled()
	// Room that was offered and not used yet is not offered twice.
	offered := w.offered[:0]
	for _, c := range w.offered {
		if c.offered && !c.closed && c.takeNow(&c.waitingCost) {
			offered = append(offered, c)
		}
	}
	for range w.conns.Len() {
		place := w.conns.Pop()
		c := *place
		*place = nil
		switch {
		case c.closed:
			c.waiting = false
		case c.hasRoom() && c.takeNow(&c.waitingCost):
			c.waiting, c.offered = false, true
			offered = append(offered, c)
			c.emit(EvCredit)
		case c.hopeless(&c.waitingCost): // a limit was lowered: the ULP learns that when it tries again
			c.waiting = false
			c.emit(EvCredit)
		default:
			*w.conns.Push() = c
		}
	}
	for _, c := range offered {
		c.giveBack(&c.waitingCost)
	}
	clear(w.offered[min(len(offered), len(w.offered)):])
	w.offered = offered
}

// wakeStalled queues the responses that can get credits now.
func (w *waiting) wakeStalled() {
	for t := w.stalled.First(); t != nil; {
		next := t.place.Next()
		t.conn.startResponse(t, true)
		t = next
	}
}

// again withdraws all unused offers and makes wake examine all connections.
func (w *waiting) again() {
	for _, c := range w.offered {
		c.offered = false
	}
	w.recheck = true
}

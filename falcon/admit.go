package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// checkRSN returns DropNone if a request with this RSN and a new PSN can be accepted, else the
// reason to drop it.
func (c *outcome) checkRSN(rsn uint32) wire.Drop {
	n := rsn - c.targetBase
	switch {
	case int32(n) < 0:
		return wire.DropRSN
	case n >= MaxTxWindow:
		return wire.DropResource
	case c.rxs.At(c.targetBase, rsn) != nil:
		return wire.DropRSN
	}
	return wire.DropNone
}

// admit checks whether there are resources for a request from the network (Falcon §8.2.4), and
// charges for the request if it is admitted.
//
// In the green zone every request is accepted: the request is within the connection's part of
// Config.RxContexts and within the credits of every level. In the red zone, above that, a
// connection may still have its head of line accepted (UR rule, §8.2.1.1). Otherwise everything
// would stop once the contexts were full of requests that wait for a head of line.
//
// An ordered connection has one head of line at a time. On an unordered connection every request
// could be one, so admit takes two: the request that finds no other request of the connection, and
// the oldest packet of the window. The oldest is needed because later requests may hold contexts
// until they are sent again, while the initiator may have window left for that one packet only.
func (c *outcome) admit(head, oldest bool) bool {
	first := head && (c.ordered || oldest || c.requests == 0)
	if c.e.contexts.rxRoom() > 0 && (first || c.mayHoldContext()) && c.takeOne(credit.NetPktRx) {
		return true
	}
	if !first {
		return false
	}
	if c.credits != nil {
		c.credits.TakeOne(credit.NetPktRx, true)
	}
	return true
}

// refuseResource queues a resource NACK for a request that there is no room for.
func (c *outcome) refuseResource(psn uint32, request bool) wire.Drop {
	c.e.stats.RedZone++
	c.queueNack(nackEntry{psn: psn, code: wire.NackResource, request: request})
	return wire.DropResource
}

// Besides its head of line, a connection may hold an eighth of the free contexts, and a few in any
// case. This leaves contexts for connections that come later, however many the first ones ask for.
const (
	contextPart  = 8
	contextLeast = 4
)

func (c *outcome) mayHoldContext() bool {
	free := c.e.contexts.rxRoom()
	if c.credits != nil {
		free = min(free, int(c.credits.Headroom(credit.NetPktRx)))
	}
	return int(c.requests) < max(free/contextPart, contextLeast)
}

// copyRequest copies the payload of a push that must wait. It returns nil if there is no cell. When
// all cells are taken, the function that holds the most gives up its oldest cell; within c's own
// function, a connection that holds more than c does. The push that loses its cell was not
// acknowledged, so its initiator sends it again. A connection that never fills its holes can
// therefore not keep others from filling theirs.
func (c *outcome) copyRequest(payload []byte) *cell {
	p := &c.e.contexts.cells
	if len(payload) > p.size || p.requests >= p.limit && !c.evict(p.largest(c.share)) {
		return nil
	}
	if !c.takeOne(credit.NetBufRx) && !(c.evict(c.share) && c.takeOne(credit.NetBufRx)) {
		return nil
	}
	k := p.copyRequest(c.self(), payload)
	c.e.contexts.cellLevel.update(p.requests)
	return k
}

// evictScan limits how many cells evict examines.
const evictScan = 16

// evict frees the oldest cell of s that c may take: any cell of another function, but in its own
// function only one of a connection that afterwards still holds at least as many as c.
func (c *outcome) evict(s *share) bool {
	for range min(evictScan, s.cells.n) {
		k := s.cells.First()
		if k.rx != nil && (s != c.share || k.conn.requestCells > c.requestCells+1) {
			c.e.stats.Evicted++
			k.conn.queueNack(nackEntry{psn: k.rx.psn, code: wire.NackResource})
			k.conn.forget(k.rx)
			return true
		}
		k.age.Remove() // examine this cell last next time
		s.cells.PushBack(&k.age, k)
	}
	return false
}

func (c *outcome) copyPayload(k **cell, payload []byte) bool {
	*k = c.copyRequest(payload)
	return *k != nil
}

// watchPeer starts the timer that reclaims what the connection holds for its peer.
func (c *outcome) watchPeer(now Time) {
	if limit := c.e.profile.RxTimeout; limit > 0 && !c.reclaimTimer.Armed() {
		c.reclaimNext = c.targetNext
		c.e.wheel.Arm(&c.reclaimTimer, c.self(), timerReclaim, now+limit)
	}
}

// What a peer makes the target hold is limited in two ways: by how much one connection may hold
// (contexts and cells: admit and copyRequest), and by how long the peer may leave it waiting (Falcon
// §6.4, §11: soft state, reclaimed by timeouts on both sides).

// onReclaimTimer gives up what the peer left waiting for too long, and arms the timer for the next
// item that may become too old.
func (c *transactions) onReclaimTimer(now Time) {
	limit := c.e.profile.RxTimeout
	next := Time(-1)
	overdue := func(since Time) bool {
		if since+limit <= now {
			return true
		}
		if next < 0 || since < next {
			next = since
		}
		return false
	}
	orderSince := c.waitingSince(now)
	for rx := range c.rxs.All() {
		switch {
		case rx.state == rxWaiting && overdue(max(rx.since, orderSince)), rx.state == rxNotReady && rx.push && overdue(rx.since):
			c.reclaim(now, rx)
		case rx.state == rxRefused && overdue(rx.since):
			c.e.stats.Reclaimed++
			c.dropRx(rx) // its PSN stays received: the push must not reach the ULP again
		}
	}
	for t := c.e.waiting.stalled.First(); t != nil; {
		after := t.place.Next()
		if t.conn == c.self() && overdue(t.started) {
			t.unlink()
			c.e.stats.Reclaimed++
			c.responseDone(t, CmplLocalTO)
		}
		t = after
	}
	c.retire()
	c.checkDrained()
	if next >= 0 {
		c.e.wheel.Arm(&c.reclaimTimer, c.self(), timerReclaim, next+limit)
	}
}

// waitingSince returns since when the order of the connection has waited for the same request. A
// request that was NACKed with RNR, and is sent again, is no reason to give up those behind it.
func (c *transactions) waitingSince(now Time) Time {
	moved := c.reclaimNext != c.targetNext
	c.reclaimNext = c.targetNext
	if moved {
		return now
	}
	if head := c.rxs.At(c.targetBase, c.targetNext); head != nil && head != doneRx {
		return head.since
	}
	return longAgo
}

// reclaim gives up a waiting request. A push is forgotten: it is not acknowledged, so its initiator
// still has it. A pull is acknowledged, so a Resync informs its initiator; if the peer does not
// acknowledge even that, the connection ends.
func (c *transactions) reclaim(now Time, rx *rxTxn) {
	c.e.stats.Reclaimed++
	if rx.push {
		c.forget(rx)
		return
	}
	c.refusePull(now, rx, wire.ResyncTimeout)
}

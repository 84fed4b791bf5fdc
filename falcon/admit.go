package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// checkRSN reports whether a request with this RSN and a new PSN can be taken.
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

// admit is the resource check for requests from the network (Falcon §8.2.4); what it admits is
// charged. In the green zone, within the connection's part of Config.RxContexts and the credits of
// every level, everything is accepted. In the red zone above it every connection may still have its
// head of line (UR rule, §8.2.1.1), or everything would stop with contexts full of requests that
// wait for one. On an ordered connection there is one at a time. On an unordered one every request
// is a head of line: the first counts, and the oldest packet of the window. Where later ones hold
// contexts until they are sent again, its initiator may have no window for more than that one.
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

// refuseResource answers a request there is no room for.
func (c *outcome) refuseResource(psn uint32, request bool) wire.Drop {
	c.e.stats.RedZone++
	c.queueNack(nackEntry{psn: psn, code: wire.NackResource, request: request})
	return wire.DropResource
}

// Behind the head of its line a connection may hold an eighth of the contexts that are free, but a
// few in any case. So those that come later find some, however many the first ones want.
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

// copyRequest copies a push that must wait; nil if there is no cell for it. Where all are taken,
// the function that holds the most, and within a function a connection that holds more than c,
// gives up its oldest: that push was not acknowledged, so its initiator sends it again. What fills
// the holes of others thus does not depend on those who leave theirs open.
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

// evictScan is how many cells evict looks at.
const evictScan = 16

// evict frees the oldest cell of s that c may take: any of another function, of its own one of a
// connection that holds more than c would.
func (c *outcome) evict(s *share) bool {
	for range min(evictScan, s.cells.n) {
		k := s.cells.First()
		if k.rx != nil && (s != c.share || k.conn.requestCells > c.requestCells+1) {
			c.e.stats.Evicted++
			k.conn.queueNack(nackEntry{psn: k.rx.psn, code: wire.NackResource})
			k.conn.forget(k.rx)
			return true
		}
		k.age.Remove() // looked at last again
		s.cells.PushBack(&k.age, k)
	}
	return false
}

func (c *outcome) copyPayload(k **cell, payload []byte) bool {
	*k = c.copyRequest(payload)
	return *k != nil
}

// watchPeer sees to it that what the connection holds for its peer does not wait for ever.
func (c *outcome) watchPeer(now Time) {
	if limit := c.e.profile.RxTimeout; limit > 0 && !c.reclaimTimer.Armed() {
		c.reclaimNext = c.targetNext
		c.e.wheel.Arm(&c.reclaimTimer, c.self(), timerReclaim, now+limit)
	}
}

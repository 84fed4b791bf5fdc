package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// checkRSN returns DropNone if a request with this RSN and a new PSN can be accepted, else the
// reason to drop it.
func (tgt *target) checkRSN(rsn uint32) wire.Drop {
	n := rsn - tgt.base
	switch {
	case int32(n) < 0:
		return wire.DropRSN
	case n >= MaxTxWindow:
		return wire.DropResource
	case tgt.pending.At(tgt.base, rsn) != nil:
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
func (tgt *target) admit(head, oldest bool) bool {
	first := head && (tgt.conn.cfg.Ordered || oldest || tgt.unanswered == 0)
	if tgt.conn.e.contexts.requestRoom() > 0 && (first || tgt.mayHoldContext()) && tgt.conn.credits.takeOne(credit.NetPktRx) {
		return true
	}
	if !first {
		return false
	}
	if tgt.conn.credits.node != nil {
		tgt.conn.credits.node.TakeOne(credit.NetPktRx, true)
	}
	return true
}

// refuseResource queues a resource NACK for a request that there is no room for.
func (tgt *target) refuseResource(psn uint32, request bool) wire.Drop {
	tgt.conn.e.stats.RedZone++
	tgt.rx.queueNack(nackEntry{psn: psn, code: wire.NackResource, request: request})
	return wire.DropResource
}

// Besides its head of line, a connection may hold an eighth of the free contexts, and a few in any
// case. This leaves contexts for connections that come later, however many the first ones ask for.
const (
	contextPart  = 8
	contextLeast = 4
)

func (tgt *target) mayHoldContext() bool {
	free := tgt.conn.e.contexts.requestRoom()
	if tgt.conn.credits.node != nil {
		free = min(free, int(tgt.conn.credits.node.Headroom(credit.NetPktRx)))
	}
	return int(tgt.unanswered) < max(free/contextPart, contextLeast)
}

// copyRequest copies the payload of a push that must wait. It returns nil if there are not enough
// cells. When all cells are taken, the function that holds the most gives up its oldest ones; within
// the connection's own function, a connection that holds more than it does. The push that loses its
// cells was not acknowledged, so its initiator sends it again. A connection that never fills its
// holes can therefore not keep others from filling theirs.
func (tgt *target) copyRequest(payload []byte) *cell {
	p := &tgt.conn.e.contexts.cells
	n := p.of(payload)
	for p.requests+n > p.limit {
		if n > p.limit || !tgt.evict(p.largest(tgt.conn.share, n), n) {
			return nil
		}
	}
	for tries := n; !tgt.conn.credits.takeCells(n); tries-- {
		if tries == 0 || !tgt.evict(tgt.conn.share, n) {
			return nil
		}
	}
	k := p.copyRequest(tgt.conn, payload)
	tgt.conn.e.contexts.cellLevel.update(p.requests)
	return k
}

// evictScan limits how many payloads evict examines.
const evictScan = 16

// evict frees the cells of the oldest payload of s that the connection, which needs n, may take: any
// one of another function, but in its own function only one of a connection that afterwards still
// holds at least as many.
func (tgt *target) evict(s *share, n int) bool {
	first := s.cells.First()
	if first == nil {
		return false
	}
	for range evictScan {
		k := s.cells.First()
		if k.req != nil && (s != tgt.conn.share || int(k.conn.requestCells)-k.size >= int(tgt.conn.requestCells)+n) {
			tgt.conn.e.stats.Evicted++
			k.conn.target.giveUp(k.req)
			return true
		}
		k.age.Remove() // examine this payload last next time
		s.cells.PushBack(&k.age, k)
		if s.cells.First() == first {
			break
		}
	}
	return false
}

// giveUp forgets a push whose cell another one takes, and tells the peer.
func (tgt *target) giveUp(req *request) {
	tgt.rx.queueNack(nackEntry{psn: req.psn, code: wire.NackResource})
	tgt.forget(req)
}

// armReclaim starts the timer that reclaims what the connection holds for its peer.
func (tgt *target) armReclaim(now Time) {
	if limit := tgt.conn.e.profile.RxTimeout; limit > 0 && !tgt.timer.Armed() {
		tgt.reclaimNext = tgt.next
		tgt.conn.e.arm(&tgt.timer, tgt, now+limit)
	}
}

// What a peer makes the target hold is limited in two ways: by how much one connection may hold
// (contexts and cells: admit and copyRequest), and by how long the peer may leave it waiting
// (Falcon §6.4, §11: soft state, reclaimed by timeouts on both sides).

// expired gives up what the peer left waiting for too long, and arms the timer for the next item
// that may become too old.
func (tgt *target) expired(now Time) {
	limit := tgt.conn.e.profile.RxTimeout
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
	orderSince := tgt.waitingSince(now)
	for req := range tgt.pending.All() {
		switch {
		case req.state == requestWaiting && overdue(max(req.since, orderSince)), req.state == requestNotReady && req.push && overdue(req.since):
			tgt.reclaim(now, req)
		case req.state == requestRefused && overdue(req.since):
			tgt.conn.e.stats.Reclaimed++
			tgt.drop(req) // its PSN stays received: the push must not reach the ULP again
		}
	}
	for t := tgt.conn.e.waiting.stalled.First(); t != nil; {
		after := t.place.Next()
		if t.conn == tgt.conn && overdue(t.started) {
			tgt.conn.e.stats.Reclaimed++
			t.makeResync(wire.ResyncTimeout, CmplLocalTO) // as reclaim does for a pull
			tgt.queueResponse(t)
		}
		t = after
	}
	tgt.retire()
	tgt.conn.checkDrained()
	if next >= 0 {
		tgt.conn.e.arm(&tgt.timer, tgt, next+limit)
	}
}

// waitingSince returns since when the order of the connection has waited for the same request. A
// request that was NACKed with RNR, and is sent again, is no reason to give up those behind it.
func (tgt *target) waitingSince(now Time) Time {
	moved := tgt.reclaimNext != tgt.next
	tgt.reclaimNext = tgt.next
	if moved {
		return now
	}
	if head := tgt.pending.At(tgt.base, tgt.next); head != nil && head != doneRequest {
		return head.since
	}
	return longAgo
}

// reclaim gives up a waiting request. A push is forgotten: it is not acknowledged, so its initiator
// still has it. A pull is acknowledged, so a Resync informs its initiator; if the peer does not
// acknowledge even that, the connection ends.
func (tgt *target) reclaim(now Time, req *request) {
	tgt.conn.e.stats.Reclaimed++
	if req.push {
		tgt.forget(req)
		return
	}
	tgt.refusePull(now, req, wire.ResyncTimeout)
}

package falcon

import "github.com/falcon-vnic/vnic/falcon/credit"

// wait puts the connection in the list of those that get EvCredit when there is room again: at the
// end, or in front if it was offered room that others took before it could. Else those that come
// first might take all of it every time.
func (c *Conn) wait(cost *credit.Cost, offered bool) {
	e := c.e
	e.stats.Xoffs++
	c.waitingCost = *cost
	if c.waiting {
		return
	}
	c.waiting = true
	if offered {
		*e.waiting.PushFront() = c
	} else {
		*e.waiting.Push() = c
	}
}

// wakeWaiting sends EvCredit to the waiting connections that could issue now what they were
// refused, the longest waiting first and no more of them than can do so together; it reports
// whether there was one. It looks only after something was freed.
func (e *Engine) wakeWaiting() bool {
	if !e.recheck || e.holdCredit {
		return false
	}
	e.recheck = false
	e.wakeStalled()
	// What was offered and not taken up yet is not offered twice.
	offered := e.offered[:0]
	for _, c := range e.offered {
		if c.offered && !c.closed && c.take(&c.waitingCost) {
			offered = append(offered, c)
		}
	}
	for range e.waiting.Len() {
		place := e.waiting.Pop()
		c := *place
		*place = nil
		switch {
		case c.closed:
			c.waiting = false
		case c.hasRoom() && c.take(&c.waitingCost):
			c.waiting, c.offered = false, true
			offered = append(offered, c)
			e.emit(EvCredit, c)
		case c.hopeless(&c.waitingCost): // a limit was lowered: it learns that when it tries again
			c.waiting = false
			e.emit(EvCredit, c)
		default:
			*e.waiting.Push() = c
		}
	}
	for _, c := range offered {
		if c.credits != nil && c.credits.Return(&c.waitingCost) != nil {
			e.stats.CreditErrors++
		}
	}
	if len(offered) < len(e.offered) {
		clear(e.offered[len(offered):])
	}
	e.offered = offered
	return e.events.Len() > 0
}

// wakeStalled starts the responses that can have credits now.
func (e *Engine) wakeStalled() {
	for t := e.stalled.First(); t != nil; {
		next := t.place.Next()
		t.conn.startResponse(t)
		t = next
	}
}

// HoldCredit keeps EvCredit back, so that what many packets free is looked at once, when it is let
// go.
func (e *Engine) HoldCredit(on bool) { e.holdCredit = on }

// CreditsChanged makes Next look again at the connections that wait for credits: call it when
// credits became available outside this engine, for example because a limit was raised, or when a
// connection that got EvCredit does not issue.
func (e *Engine) CreditsChanged() {
	for _, c := range e.offered {
		c.offered = false
	}
	e.recheck = true
}

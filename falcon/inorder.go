package falcon

// deliver queues the event of a request whose turn has come, and of the requests that waited for
// it.
func (c *outcome) deliver(rx *rxTxn) {
	c.queueRequest(rx)
	if c.ordered && !c.hold {
		c.targetNext++
		c.deliverInOrder()
	}
}

func (c *outcome) queueRequest(rx *rxTxn) {
	rx.state = rxQueued
	if rx.cell != nil {
		rx.cell.rx = nil // it no longer waits
	}
	u := c.emit(EvPull)
	u.ev.RSN, u.ev.Length, u.rx, u.gen = rx.rsn, rx.length, rx, rx.gen
	if rx.push {
		u.ev.Kind, u.ev.Length = EvPush, len(rx.data)
	}
}

// deliverInOrder delivers waiting requests from targetNext on (Falcon §8.5.2).
func (c *outcome) deliverInOrder() {
	if !c.ordered {
		return
	}
	for !c.hold {
		rx := c.rxs.At(c.targetBase, c.targetNext)
		if rx == nil || rx.state == rxNotReady {
			return
		}
		if rx.state == rxWaiting {
			c.queueRequest(rx)
		}
		c.targetNext++
	}
}

func (c *outcome) redeliver(rx *rxTxn) {
	if !c.ordered || rx.rsn == c.targetNext {
		c.deliver(rx)
		return
	}
	rx.state = rxWaiting
}

// take moves the payload of a queued request into the event and returns its cell. It returns false
// if the request was withdrawn meanwhile.
func (rx *rxTxn) take(gen uint32, ev *Event) (k *cell, ok bool) {
	if rx.gen != gen || rx.state != rxQueued {
		return nil, false
	}
	rx.state = rxULP
	ev.Data = rx.data
	if rx.push { // a pull keeps its headers for redelivery
		k, rx.cell, rx.data = rx.cell, nil, nil
	}
	return k, true
}

// wait keeps a push, with its payload in k, until earlier ones are delivered.
func (rx *rxTxn) wait(k *cell) {
	rx.state, rx.cell, rx.data, k.rx = rxWaiting, k, k.buf, rx
}

// withdraw takes back a request whose event Next has not returned yet.
func (rx *rxTxn) withdraw() {
	rx.gen++ // invalidates its event in the queue
	rx.state = rxWaiting
}

// skip removes an RSN from the order of the target, because its request will never come or is
// withdrawn. It returns false if the RSN is too far ahead to be remembered.
func (c *outcome) skip(rsn, psn uint32, push bool) bool {
	n := rsn - c.targetBase
	if int32(n) < 0 {
		return true
	}
	if n >= MaxTxWindow {
		return false
	}
	rx := c.rxs.At(c.targetBase, rsn)
	if rx != nil && (rx == doneRx || rx.psn != psn || rx.push != push) {
		return true // answered already, or used by another packet
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

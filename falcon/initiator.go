package falcon

import "github.com/falcon-vnic/vnic/falcon/credit"

// Push issues a push (Falcon §8.4.3.3) of length bytes, which Fill writes when the packet is sent.
// Exactly one EvPushDone with tag follows. Push returns ErrXoff if there is no room (EvCredit
// follows), ErrTooLong if length is negative or above the MTU, ErrClosed or ErrDraining.
func (c *Conn) Push(now Time, tag uint64, length int) error {
	return c.push(now, tag, length, false)
}

// PushLast issues a push that is the last packet of a message. With the software profile it asks
// for an acknowledgement at once.
func (c *Conn) PushLast(now Time, tag uint64, length int) error {
	return c.push(now, tag, length, true)
}

func (c *transactions) push(now Time, tag uint64, length int, last bool) error {
	if length < 0 || length > int(c.mtu) {
		return ErrTooLong
	}
	cost := credit.PushCost(length, c.e.cfg.CreditCell)
	t, err := c.issue(now, TxnPush, tag, length, &cost)
	if err != nil {
		return err
	}
	if t != nil {
		t.state, t.last = pushReqUlpRx, last
	}
	return nil
}

// Pull issues a pull (Falcon §8.4.3.1): the request carries reqLen bytes of ULP headers, at most
// MaxPullHeader, and the response up to respLen bytes. Exactly one EvPullDone with tag follows. Its
// errors are those of Push.
func (c *Conn) Pull(now Time, tag uint64, reqLen, respLen int) error {
	if reqLen < 0 || reqLen > min(int(c.mtu), MaxPullHeader) || respLen < 0 || respLen > int(c.mtu) {
		return ErrTooLong
	}
	cost := credit.PullCost(respLen, c.e.cfg.CreditCell)
	t, err := c.issue(now, TxnPull, tag, reqLen, &cost)
	if err != nil {
		return err
	}
	if t != nil {
		t.state, t.pullLength = pullReqUlpRx, int32(respLen)
	}
	return nil
}

// issue takes credits and an RSN for a transaction and queues its packet. It returns nil without an
// error if the transaction was rejected.
func (c *transactions) issue(now Time, kind TxnKind, tag uint64, length int, cost *credit.Cost) (*txn, error) {
	if c.closed {
		return nil, ErrClosed
	}
	if c.draining {
		return nil, ErrDraining
	}
	offered := c.offered
	c.offered = false
	if !c.hasRoom() || !c.take(cost) {
		if c.cfg.NoFlowControl || c.hopeless(cost) {
			c.reject(kind, tag, cost)
			return nil, nil
		}
		c.wait(cost, offered)
		return nil, ErrXoff
	}
	t := c.e.contexts.newTxn(c.self(), kind)
	t.tag, t.length, t.cost, t.started = tag, int32(length), *cost, -1
	t.rsn = c.nextRSN
	c.nextRSN++
	c.txns.Put(c.baseRSN, t.rsn, t)
	t.enlist(inFresh + listID(kind))
	c.e.schedule.queues[classInitiator].push(c.self())
	return t, nil
}

// reject completes a transaction that was never begun (Falcon §8.2.3). It takes no RSN, so nothing
// waits for it.
func (c *transactions) reject(kind TxnKind, tag uint64, cost *credit.Cost) {
	ev := &c.emit(EvPushDone).ev
	ev.Tag, ev.Code = tag, CmplLocalRsrc
	if kind == TxnPull {
		ev.Kind = EvPullDone
	}
	if c.hopeless(cost) {
		ev.Code = CmplUlpCdtErr
	}
	c.e.stats.Rejected++
	c.e.stats.Completions[ev.Code]++
}

// hasRoom reports whether another transaction can begin. On an ordered connection whose peer is not
// ready none can, because it could only wait.
func (c *transactions) hasRoom() bool {
	return !(c.ordered && c.parked > 0) && c.nextRSN-c.baseRSN < c.e.profile.MaxTxn && c.e.contexts.room()
}

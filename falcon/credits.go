package falcon

import "github.com/falcon-vnic/vnic/falcon/credit"

func (c *state) take(cost *credit.Cost) bool { return c.credits == nil || c.credits.Take(cost) }

// takeNow takes credits for a request that was refused before.
func (c *state) takeNow(cost *credit.Cost) bool { return c.credits == nil || c.credits.Retry(cost) }

// returnCredits gives cost back and clears it. Others may wait for these credits.
func (c *state) returnCredits(cost *credit.Cost) {
	if *cost == (credit.Cost{}) {
		return
	}
	c.giveBack(cost)
	*cost = credit.Cost{}
	c.e.waiting.recheck = true
}

func (c *state) giveBack(cost *credit.Cost) {
	if c.credits != nil && c.credits.Return(cost) != nil {
		c.e.stats.CreditErrors++
	}
}

// park releases the credits of a transaction that waits for the peer's receiver, if it holds any.
func (c *state) park(t *txn) {
	if t.parked || t.cost == (credit.Cost{}) || c.credits == nil || !c.credits.Park(&t.cost) {
		return
	}
	t.parked = true
	c.parked++
	c.e.contexts.parked++
	c.e.waiting.recheck = true
}

// unpark charges a parked transaction, which is about to be sent, for its credits again.
func (c *state) unpark(t *txn) {
	if t.parked {
		c.credits.Unpark(&t.cost)
		c.unparked(t)
	}
}

// unparked clears the parked state of a transaction.
func (c *state) unparked(t *txn) {
	t.parked = false
	c.parked--
	c.e.contexts.parked--
	if c.parked == 0 {
		c.e.waiting.recheck = true // the connection takes requests again
	}
}

func (c *state) takeOne(i credit.Counter) bool {
	return c.credits == nil || c.credits.TakeOne(i, false)
}

func (c *state) returnOne(i credit.Counter) {
	if c.credits != nil && !c.credits.ReturnOne(i) {
		c.e.stats.CreditErrors++
	}
}

// hopeless reports whether cost is above a limit, so that waiting would not help (Falcon §11,
// kUlpCmplCdtErr).
func (c *state) hopeless(cost *credit.Cost) bool {
	return c.credits != nil && !c.credits.Possible(cost)
}

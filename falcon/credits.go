package falcon

import "github.com/falcon-vnic/vnic/falcon/credit"

func (c *state) take(cost *credit.Cost) bool { return c.credits == nil || c.credits.Take(cost) }

// takeNow is take for what was refused before.
func (c *state) takeNow(cost *credit.Cost) bool { return c.credits == nil || c.credits.Retry(cost) }

// returnCredits gives back and clears cost, for which others may wait.
func (c *state) returnCredits(cost *credit.Cost) {
	if *cost == (credit.Cost{}) {
		return
	}
	c.giveBack(cost)
	*cost = credit.Cost{}
	c.e.waiting.recheck = true
}

// giveBack gives back cost.
func (c *state) giveBack(cost *credit.Cost) {
	if c.credits != nil && c.credits.Return(cost) != nil {
		c.e.stats.CreditErrors++
	}
}

// park has a transaction that waits for the peer's receiver give its credits back, if it holds some.
func (c *state) park(t *txn) {
	if t.parked || t.cost == (credit.Cost{}) || c.credits == nil || !c.credits.Park(&t.cost) {
		return
	}
	t.parked = true
	c.parked++
	c.e.contexts.parked++
	c.e.waiting.recheck = true
}

// unpark has a transaction that is about to be sent hold its credits again.
func (c *state) unpark(t *txn) {
	if t.parked {
		c.credits.Unpark(&t.cost)
		c.unparked(t)
	}
}

// unparked notes that a transaction is parked no longer.
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

// hopeless reports whether a limit is below cost, so that waiting would not help (Falcon §11,
// kUlpCmplCdtErr).
func (c *state) hopeless(cost *credit.Cost) bool {
	return c.credits != nil && !c.credits.Possible(cost)
}

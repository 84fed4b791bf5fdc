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

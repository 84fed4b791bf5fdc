package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// heldCQE is a completion that Faults hold back.
type heldCQE struct {
	cqe       abi.CQE
	solicited bool
}

// maxHeld limits the completions held back in one queue.
const maxHeld = 32

// hold holds a completion back. If it returns false, the completion must be written now; those held
// back before have been written.
func (c *CQ) hold(now vtime.Time, cqe *abi.CQE, solicited bool) bool {
	if len(c.waiting) < maxHeld && c.owner.faults.Hold(c.number) {
		c.waiting = append(c.waiting, heldCQE{*cqe, solicited})
		return true
	}
	c.Release(now)
	return false
}

// Release writes the completions that were held back.
func (c *CQ) Release(now vtime.Time) {
	list := c.waiting
	c.waiting = nil
	for i := range list {
		c.put(now, &list[i].cqe, list[i].solicited)
	}
}

// releaseAll writes all completions that were held back. It reports whether there were any.
func (t *CQs) releaseAll(now vtime.Time) (any bool) {
	t.table.Each(func(c *CQ) {
		any = any || len(c.waiting) > 0
		c.Release(now)
	})
	return any
}

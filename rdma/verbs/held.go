package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// heldCQE is a completion that waits because Faults say so.
type heldCQE struct {
	cqe       abi.CQE
	solicited bool
}

// maxHeld bounds what waits in one queue.
const maxHeld = 32

// hold keeps a completion back. It reports false when it has to be written, behind those that wait.
func (c *CQ) hold(now vtime.Time, cqe *abi.CQE, solicited bool) bool {
	if len(c.waiting) < maxHeld && c.owner.faults.Hold(c.number) {
		c.waiting = append(c.waiting, heldCQE{*cqe, solicited})
		return true
	}
	c.Release(now)
	return false
}

// Release writes the completions that wait.
func (c *CQ) Release(now vtime.Time) {
	list := c.waiting
	c.waiting = nil
	for i := range list {
		c.put(now, &list[i].cqe, list[i].solicited)
	}
}

// releaseAll writes all completions that wait. It reports whether there were any.
func (t *CQs) releaseAll(now vtime.Time) (any bool) {
	t.table.Each(func(c *CQ) {
		any = any || len(c.waiting) > 0
		c.Release(now)
	})
	return any
}

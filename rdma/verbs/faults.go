package verbs

import (
	"errors"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Faults injects failures into a function, so that drivers can be tested against them. A function
// in service has none, which costs only a nil check. The methods are called in the middle of other
// work and must not call back.
type Faults interface {
	// Work returns the status that a request read from a send queue fails with, WCSuccess if it
	// does not fail.
	Work(qpn uint32, op abi.Opcode) abi.WCStatus
	// Access reports whether the memory behind a region counts as gone.
	Access() bool
	// Key reports whether the key in a request of the peer counts as invalid.
	Key(qpn uint32) bool
	// Stuck reports whether the send queue of a queue pair is ignored for now.
	Stuck(qpn uint32) bool
	// Hold reports whether a completion waits, in its queue's order, for Release or for a later
	// completion that does not wait.
	Hold(cqn uint32) bool
	// Overrun reports whether a completion finds its queue full, whatever is in it.
	Overrun(cqn uint32) bool
}

// Reasons why memory cannot be accessed.
var (
	errGone     = errors.New("the region was deregistered")
	errInjected = errors.New("memory made inaccessible, at the operator's request")
)

var errOverrun = errors.New("completion queue overflowed, at the operator's request")

// UseFaults sets the failures to inject from now on; nil injects none.
func (o *Owner) UseFaults(x Faults) { o.faults = x }

// stuck reports whether Faults hold back the send queue of a queue pair.
func (o *Owner) stuck(qpn uint32) bool { return o.faults != nil && o.faults.Stuck(qpn) }

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

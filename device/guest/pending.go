package guest

import "github.com/falcon-vnic/vnic/queues/abi"

// pending is a command that is completed later, by the holder of its ticket: another shard or the
// NIC's core has to be asked. Other commands complete meanwhile; drivers match completions by ID
// (DRV-504).
//
//	Dispatch ─▶ handler ─ later ─▶ StatusPending, and the ticket goes with the request
//	completion ◀───────────────────── Complete(status, result) ◀──── the answer
//
// A reset of the function drops it: then Complete does nothing.
type pending struct {
	in    *admin // nil: it was completed or dropped
	cmd   abi.AdminCmd
	index uint32     // in the queue
	told  abi.Clause // clause that the engine has already recorded; 0: none
}

var _ abi.Ticket = (*pending)(nil)

// current returns the current command.
func (a *admin) current() *pending {
	return &pending{cmd: a.cmd, index: a.sq.Next() - 1, in: a}
}

// later is called by a handler before it returns StatusPending.
func (c *pending) later() abi.Ticket {
	c.in.pending = append(c.in.pending, c)
	return c
}

// Complete implements abi.Ticket.
func (c *pending) Complete(st abi.Status, result abi.Result) {
	a := c.in
	if a == nil || !a.drop(c) || a.user.stopped() {
		return
	}
	cqe := abi.AdminCQE{ID: c.cmd.ID, Status: st}
	if result != nil {
		result.Marshal(cqe.Result[:])
	}
	a.user.judged(c, st)
	if a.complete(&cqe) {
		a.user.completed()
	}
}

// drop removes a command from the pending ones. It returns false if it was not among them.
func (a *admin) drop(c *pending) bool {
	for i, p := range a.pending {
		if p == c {
			a.pending = append(a.pending[:i], a.pending[i+1:]...)
			c.in = nil
			return true
		}
	}
	return false
}

// forget drops all pending commands.
func (a *admin) forget() {
	for _, c := range a.pending {
		c.in = nil
	}
	a.pending = nil
}

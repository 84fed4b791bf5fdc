package rdma

import (
	"errors"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Faults lets a function go wrong on purpose, for drivers to be tested against. One in service has
// none, which costs nothing but the look. The methods are called in the middle of other work and
// must not call back.
type Faults interface {
	// Work is how a request read from a send queue ends, WCSuccess if it goes on as it should.
	Work(qpn uint32, op abi.Opcode) abi.WCStatus
	// Access says that the memory behind a region is found gone.
	Access() bool
	// Key says that the key of a request of the peer is taken for wrong.
	Key(qpn uint32) bool
	// Stuck says that the send queue of a queue pair is not looked at now.
	Stuck(qpn uint32) bool
	// Hold says that a completion waits, in its queue's order, for Release or one that does not.
	Hold(cqn uint32) bool
}

// errInjected is why memory is not there.
var errInjected = errors.New("rdma: memory gone, by request of the operator")

// UseFaults sets what goes wrong from now on; nil is nothing.
func (f *Function) UseFaults(x Faults) { f.faults = x }

// Unstick looks at all send queues again that Stuck may have kept back.
func (f *Function) Unstick(now falcon.Time) {
	f.qps.each(func(q *QP) { q.wake() })
	if f.gsi != nil {
		f.gsi.wake()
	}
	f.settle(now)
}

// stuck reports whether the send queue is kept back.
func (q *QP) stuck() bool { return q.fn.faults != nil && q.fn.faults.Stuck(q.number) }

// heldCQE is a completion that waits.
type heldCQE struct {
	cqe       abi.CQE
	solicited bool
}

// maxHeld bounds what waits in one queue.
const maxHeld = 32

// hold keeps a completion back. It reports false when it has to be written, behind those that wait.
func (c *CQ) hold(now falcon.Time, cqe *abi.CQE, solicited bool) bool {
	if len(c.waiting) < maxHeld && c.fn.faults.Hold(c.number) {
		c.waiting = append(c.waiting, heldCQE{*cqe, solicited})
		return true
	}
	c.release(now)
	return false
}

// release writes the completions that wait.
func (c *CQ) release(now falcon.Time) {
	list := c.waiting
	c.waiting = nil
	for i := range list {
		c.put(now, &list[i].cqe, list[i].solicited)
	}
}

// Release writes all completions that Hold kept back. It reports whether there were any.
func (f *Function) Release(now falcon.Time) (any bool) {
	f.cqs.each(func(c *CQ) {
		any = any || len(c.waiting) > 0
		c.release(now)
	})
	f.settle(now)
	return any
}

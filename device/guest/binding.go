package guest

import (
	"fmt"

	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// bound is the function that a binding ties to its driver.
type bound interface {
	judge
	// handle does what the driver asks by its channel.
	handle(now falcon.Time, b *Binding, r *Request)
	// rung does what a doorbell record in shared memory says; raw is the record as it came.
	rung(now falcon.Time, d *abi.Doorbell, raw []byte)
	// detach takes the function back. fault is how the driver broke the rules, nil if it did not.
	detach(now falcon.Time, b *Binding, fault error)
	// Fault stops the function.
	Fault(code abi.Fault, reason string)
}

// Binding ties a function to the driver that has it, for as long as its session lasts. It belongs
// to the shard's thread.
type Binding struct {
	Peer     queues.Peer
	Attached string // name of the attachment it came through
	Driver   string // what the driver calls itself
	Features uint64 // in use
	Memory   *queues.Memory
	Channel  Channel

	Rang bool // it has put records into its window's ring

	function bound              // nil: none yet
	events   []*EventQueue      // by vector
	holder   queues.AdminHolder // of its window; nil: it has none
	news     bool               // in its shard's list of those to flush
	set      *Set
	breach   func(error)
}

var (
	_ BellUser  = (*Binding)(nil)
	_ EventUser = (*Binding)(nil)

	_ effect.Effect = (*Binding)(nil)
)

// handle does what the driver asks.
func (b *Binding) handle(now falcon.Time, r *Request) { b.function.handle(now, b, r) }

// cqEvent says that a completion queue has news, by the channel.
func (b *Binding) cqEvent(cqn uint32) {
	b.Channel.CQEvent(cqn)
	b.mark()
}

// asyncEvent tells what happened.
func (b *Binding) asyncEvent(e *abi.AsyncEvent) {
	b.Channel.AsyncEvent(e)
	b.mark()
}

// reply answers a register access.
func (b *Binding) reply(tag uint64, r *abi.RegReply) {
	b.Channel.Reply(tag, r)
	b.mark()
}

// leave takes the function away from its driver.
func (b *Binding) leave(now falcon.Time, fault error) {
	if b.function != nil {
		b.function.detach(now, b, fault)
	}
	b.set.leave(b)
}

// End ends the session.
func (b *Binding) End() { b.set.cfg.Effects.Add(effect.Func(b.Channel.End)) }

// mark has the channel flushed at the end of the Step.
func (b *Binding) mark() {
	if !b.news {
		b.news = true
		b.set.news = append(b.set.news, b)
	}
}

// Do implements effect.Effect: the driver gets what was said to it.
func (b *Binding) Do() {
	if b.Channel.Flush() {
		b.set.cfg.Roused.Store(true)
	}
}

// Doorbell implements BellUser.
func (b *Binding) Doorbell(now falcon.Time, d *abi.Doorbell, raw []byte) {
	b.Rang = true
	b.set.Doorbells++
	b.function.rung(now, d, raw)
}

// BrokeBell implements BellUser.
func (b *Binding) BrokeBell(clause abi.Clause) { b.function.Broke(clause, abi.RingBells, 0, 0, nil) }

// Breach implements BellUser: the session ends.
func (b *Binding) Breach(err error) { b.breach(err) }

// BrokeEvents implements EventUser.
func (b *Binding) BrokeEvents(vector int, index uint32, err error) {
	b.function.Broke(abi.DRV1010, abi.RingEvents, uint32(vector)+1, index, nil)
	b.function.Fault(abi.FaultRing, fmt.Sprintf("event queue %d: %v; only the driver writes its consumer index, forwards, and it must take the records of CQs it destroyed", vector+1, err))
}

// Name says who drives a function, for logs.
func Name(p queues.Peer) string {
	if p.CID != 0 {
		return fmt.Sprintf("%s guest %d", p.Transport, p.CID)
	}
	return fmt.Sprintf("%s process %d", p.Transport, p.PID)
}

package guest

import (
	"fmt"

	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// bound is the function that a binding gives to its driver.
type bound interface {
	judge
	// handle carries out a request that came through the driver's channel.
	handle(now falcon.Time, b *Binding, r *Request)
	// rung carries out a doorbell record from shared memory. raw holds its bytes as the driver
	// wrote them.
	rung(now falcon.Time, d *abi.Doorbell, raw []byte)
	// detach takes the function from the driver. fault says how the driver broke the rules, nil if
	// it did not.
	detach(now falcon.Time, b *Binding, fault error)
	// Fault stops the function.
	Fault(code abi.Fault, reason string)
}

// Binding connects a function with its driver while the driver's session lasts. It belongs to the
// shard's thread.
type Binding struct {
	Peer     queues.Peer
	Attached string // name of the attachment that the driver came through
	Driver   string // the name that the driver gives itself
	Features uint64 // features in use
	Memory   *queues.Memory
	Channel  Channel

	Rang bool // the driver has put records into its window's ring

	function bound              // nil: none yet
	events   []*EventQueue      // one per vector
	holder   queues.AdminHolder // the driver's window; nil: it has none
	news     bool               // listed in set.news
	set      *Set
	breach   func(error)
}

var (
	_ BellUser  = (*Binding)(nil)
	_ EventUser = (*Binding)(nil)

	_ effect.Effect = (*Binding)(nil)
)

// handle carries out a request of the driver.
func (b *Binding) handle(now falcon.Time, r *Request) { b.function.handle(now, b, r) }

// cqEvent sends an event of a completion queue through the channel.
func (b *Binding) cqEvent(cqn uint32) {
	b.Channel.CQEvent(cqn)
	b.mark()
}

// asyncEvent sends an asynchronous event through the channel.
func (b *Binding) asyncEvent(e *abi.AsyncEvent) {
	b.Channel.AsyncEvent(e)
	b.mark()
}

// reply answers a register access.
func (b *Binding) reply(tag uint64, r *abi.RegReply) {
	b.Channel.Reply(tag, r)
	b.mark()
}

// leave takes the function from its driver.
func (b *Binding) leave(now falcon.Time, fault error) {
	if b.function != nil {
		b.function.detach(now, b, fault)
	}
	b.set.leave(b)
}

// End ends the session.
func (b *Binding) End() { b.set.cfg.Effects.Add(effect.Func(b.Channel.End)) }

// mark puts the channel on the list of those to be flushed at the end of the Step.
func (b *Binding) mark() {
	if !b.news {
		b.news = true
		b.set.news = append(b.set.news, b)
	}
}

// Do implements effect.Effect: it flushes the channel.
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

// Name describes a driver, for logs.
func Name(p queues.Peer) string {
	if p.CID != 0 {
		return fmt.Sprintf("%s guest %d", p.Transport, p.CID)
	}
	return fmt.Sprintf("%s process %d", p.Transport, p.PID)
}

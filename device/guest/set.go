package guest

import (
	"sync/atomic"

	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Set is what a shard has for the drivers of its functions: their doorbell rings, and what they are
// to hear at the end of a Step.
type Set struct {
	Bells     *Bells
	Doorbells uint64 // that drivers rang

	events  EventQueues
	effects *effect.List
	news    []*Binding   // whose channels have something to let out
	roused  *atomic.Bool // set when a goroutine was made runnable
}

// NewSet returns a set without drivers. What the set has to be done it adds to effects; roused is
// set when that made a goroutine runnable.
func NewSet(effects *effect.List, roused *atomic.Bool) *Set {
	return &Set{Bells: NewBells(effects), effects: effects, roused: roused}
}

// Interrupts counts those that were raised.
func (s *Set) Interrupts() uint64 { return s.events.Raised }

// Bind prepares a binding for a driver. breach ends its session.
func (s *Set) Bind(b *Binding, breach func(error)) *Binding {
	b.set, b.breach = s, breach
	return b
}

// Listen takes doorbells from a bell, and has CQ events go to its event queues. deaf is called, as an
// effect, if the thread cannot wait for the bell.
func (s *Set) Listen(b *Binding, q queues.Bell, deaf func(error)) {
	s.Bells.Add(b, q, deaf)
	s.OpenEvents(b, q)
}

// OpenEvents makes a driver's event queues, if it has a window with some and can use them.
func (s *Set) OpenEvents(b *Binding, q queues.Bell) {
	if irq, ok := q.(queues.Interrupter); ok && b.Features&abi.FeatureVectors != 0 {
		b.Events = s.events.Open(b, irq)
	}
}

// Leave forgets the bell and the event queues of a driver.
func (s *Set) Leave(b *Binding) {
	s.Bells.Remove(b)
	s.events.Drop(b.Events)
}

// Poll takes doorbell records and reports whether there were any.
func (s *Set) Poll(now falcon.Time) bool { return s.Bells.Poll(now) }

// Show makes everything that was said in this Step known to the drivers, but for what takes a
// system call: those are effects.
func (s *Set) Show() {
	s.events.Show(s.effects)
	for _, b := range s.news {
		b.news = false
		s.effects.Add(b)
	}
	clear(s.news)
	s.news = s.news[:0]
}

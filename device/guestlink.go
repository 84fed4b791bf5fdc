package device

import (
	"fmt"

	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

var (
	_ guest.BellUser  = (*binding)(nil)
	_ guest.EventUser = (*binding)(nil)
)

// Doorbell implements guest.BellUser.
func (b *binding) Doorbell(now falcon.Time, d *abi.Doorbell) {
	b.rang = true
	b.fn.shard.counters.doorbells++
	b.fn.doorbell(now, d)
}

// BrokeBell implements guest.BellUser.
func (b *binding) BrokeBell(clause abi.Clause) { b.fn.broke(clause, abi.RingBells, 0, 0, nil) }

// Breach implements guest.BellUser.
func (b *binding) Breach(err error) { b.breach(err) }

// BrokeEvents implements guest.EventUser.
func (b *binding) BrokeEvents(vector int, index uint32, err error) {
	b.fn.broke(abi.DRV1010, abi.RingEvents, uint32(vector)+1, index, nil)
	b.fn.Fault(abi.FaultRing, fmt.Sprintf("event queue %d: %v; only the driver writes its consumer index, forwards, and it must take the records of CQs it destroyed", vector+1, err))
}

// listen takes doorbells from a bell, and has CQ events go to its event queues.
func (s *Shard) listen(b *binding, q queues.Bell) error {
	if err := s.bells.Add(b, q); err != nil {
		return fmt.Errorf("bell of %s: %w", b.fn.ID, err)
	}
	s.openEvents(b, q)
	return nil
}

// openEvents makes a session's event queues, if it has a window with some and the driver can use
// them.
func (s *Shard) openEvents(b *binding, q queues.Bell) {
	if irq, ok := q.(queues.Interrupter); ok && b.features&abi.FeatureVectors != 0 {
		b.events = s.events.Open(b, irq)
	}
}

// unlisten forgets the bell and the event queues of a session.
func (s *Shard) unlisten(b *binding) {
	s.bells.Remove(b)
	s.events.Drop(b.events)
}

// createCQ is the admin command.
func (f *function) createCQ(c *abi.CreateCQ) (cqn uint32, st abi.Status) {
	q, st := guest.Choose(f.binding.events, c.Vector)
	if st != abi.StatusOK {
		return 0, st
	}
	cqn, st = f.verbs.CreateCQ(c)
	if st == abi.StatusOK && q != nil {
		f.cqEvents.Add(cqn, q)
	}
	return cqn, st
}

// destroyCQ is the admin command.
func (f *function) destroyCQ(cqn uint32) abi.Status {
	st := f.verbs.DestroyCQ(cqn)
	if st == abi.StatusOK {
		f.cqEvents.Remove(cqn)
	}
	return st
}

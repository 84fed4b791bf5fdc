package rdma

import (
	"errors"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// queue is the device's side of a send or receive queue. What goes wrong with it stops the
// function. A QP without a queue of its own has one that was never opened: nothing is in it.
type queue struct {
	fn     *Function
	name   string // "SQ of QP" and the like, for faults
	number uint32 // of the QP or SRQ
	area   *queues.Area
	layout ring.Layout
	ring   *ring.Consumer
	read   uint32 // bytes of an entry that can matter
	told   uint32 // consumer as last written to memory
}

// queueParams is where the driver put a queue.
type queueParams struct {
	log2Entries, log2Stride uint8
	read                    uint32 // bytes of an entry that can matter
	levels                  uint8
	pages                   uint64
}

// check is the status of a command that makes a queue of at most limit entries.
func (p *queueParams) check(limit int, leastStride uint8) abi.Status {
	switch {
	case p.log2Entries > abi.MaxQueueLog2 || 1<<p.log2Entries > limit:
		return abi.StatusTooLarge
	case p.log2Entries < 1, p.log2Stride < leastStride || p.log2Stride > 12, p.read > 1<<p.log2Stride:
		return abi.StatusInvalidArgument
	}
	return abi.StatusOK
}

// openQueue reads the page list of a queue that was checked.
func (f *Function) openQueue(name string, p queueParams) (queue, abi.Status) {
	u := queue{fn: f, name: name, layout: ring.QueueLayout(p.log2Entries, p.log2Stride), read: p.read}
	area, st := f.area(p.pages, p.levels, 0, u.layout.Size())
	if st != abi.StatusOK {
		return u, st
	}
	// One allocation: 10 000 of them are in no cache, and each look at a ring needs both.
	at := &struct {
		area queues.Area
		ring ring.Consumer
	}{area: *area}
	u.area, u.ring = &at.area, &at.ring
	u.reset()
	return u, abi.StatusOK
}

// open reports whether there is a queue at all.
func (u *queue) open() bool { return u.ring != nil }

// reset forgets everything posted. The driver clears the header itself before it uses the queue
// again.
func (u *queue) reset() {
	if u.open() {
		*u.ring = *ring.NewConsumer(u.area, u.layout)
	}
	u.told = 0
}

// fault stops the function for an error of the ring.
func (u *queue) fault(err error) {
	if errors.Is(err, ring.ErrIndex) {
		clause := abi.DRV602
		if errors.Is(err, ring.ErrAhead) {
			clause = abi.DRV603
		}
		producer, _ := u.area.Load32(abi.QueueHeaderProducer)
		u.fn.broke(clause, u.kind(), u.number, producer, word(producer))
		u.fn.stop(abi.FaultDoorbell, "%s %#x: producer index in memory or doorbell is impossible (last %d, %d read, %d entries); write the producer before ringing, never move it back, never overfill a queue",
			u.name, u.number, u.ring.Producer(), u.ring.Next(), u.layout.Entries())
		return
	}
	u.fn.broke(abi.DRV402, u.kind(), u.number, u.ring.Next(), nil)
	u.fn.memoryFault(u.name, u.number, err)
}

// doorbell checks a doorbell record against the producer in memory.
func (u *queue) doorbell(index uint32) bool {
	if !u.open() {
		return false
	}
	_, err := u.ring.Doorbell(index)
	if err != nil {
		u.fault(err)
	}
	return err == nil
}

// next copies the next entry into buf and takes it. ok is false when there is none.
func (u *queue) next(buf []byte) (entry []byte, ok bool) {
	if !u.open() {
		return nil, false
	}
	if u.ring.Ready() == 0 {
		n, err := u.ring.Poll()
		if err != nil {
			u.fault(err)
		}
		if n == 0 || err != nil {
			return nil, false
		}
	}
	entry = buf[:u.read]
	if err := u.ring.Read(entry); err != nil {
		u.fault(err)
		return nil, false
	}
	u.ring.Take()
	return entry, true
}

// commit shows the driver how far entries were read.
func (u *queue) commit() {
	if !u.open() || u.told == u.ring.Next() {
		return
	}
	if err := u.ring.Commit(); err != nil {
		u.fault(err)
		return
	}
	u.told = u.ring.Next()
}

// sleep commits, asks for a doorbell at the next entry and looks once more. It reports whether
// there is an entry.
func (u *queue) sleep() (more bool) {
	u.commit()
	if !u.open() || !u.fn.working() {
		return false
	}
	n, err := u.ring.Arm()
	if err != nil {
		u.fault(err)
	}
	return n > 0 && err == nil
}

package rdma

import (
	"errors"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// queue is the device's side of a send or receive queue. What goes wrong with it stops the function.
type queue struct {
	name   string // "SQ" or "RQ", for faults
	area   *queues.Area
	layout ring.Layout
	ring   *ring.Consumer
	read   uint32 // bytes of an entry that can matter
	told   uint32 // consumer as last written to memory
}

// newQueue describes a queue; open gives it its memory.
func newQueue(name string, log2Entries, log2Stride uint8, read uint32) queue {
	return queue{name: name, layout: ring.QueueLayout(log2Entries, log2Stride), read: read}
}

func (u *queue) open(area *queues.Area) {
	u.area = area
	u.reset()
}

// reset forgets everything posted. The driver clears the header itself before it uses the queue again.
func (u *queue) reset() {
	u.ring = ring.NewConsumer(u.area, u.layout)
	u.told = 0
}

// fault stops the function for an error of the ring.
func (u *queue) fault(q *QP, err error) {
	if errors.Is(err, ring.ErrIndex) {
		q.fn.stop(abi.FaultDoorbell, "%s of QP %#x: producer index in memory or doorbell is impossible (last %d, %d read, %d entries); write the producer before ringing, never move it back, never overfill a queue",
			u.name, q.number, u.ring.Producer(), u.ring.Next(), u.layout.Entries())
		return
	}
	q.fn.memoryFault(u.name+" of QP", q.number, err)
}

// doorbell checks a doorbell record against the producer in memory.
func (u *queue) doorbell(q *QP, index uint32) bool {
	_, err := u.ring.Doorbell(index)
	if err != nil {
		u.fault(q, err)
	}
	return err == nil
}

// next copies the next entry into buf and takes it. ok is false when there is none.
func (u *queue) next(q *QP, buf []byte) (entry []byte, ok bool) {
	if u.ring.Ready() == 0 {
		n, err := u.ring.Poll()
		if err != nil {
			u.fault(q, err)
		}
		if n == 0 || err != nil {
			return nil, false
		}
	}
	entry = buf[:u.read]
	if err := u.ring.Read(entry); err != nil {
		u.fault(q, err)
		return nil, false
	}
	u.ring.Take()
	return entry, true
}

// commit shows the driver how far entries were read.
func (u *queue) commit(q *QP) {
	if u.told == u.ring.Next() {
		return
	}
	if err := u.ring.Commit(); err != nil {
		u.fault(q, err)
		return
	}
	u.told = u.ring.Next()
}

// sleep commits, asks for a doorbell at the next entry and looks once more. It reports whether there is an entry.
func (u *queue) sleep(q *QP) (more bool) {
	u.commit(q)
	if !q.fn.working() {
		return false
	}
	n, err := u.ring.Arm()
	if err != nil {
		u.fault(q, err)
	}
	return n > 0 && err == nil
}

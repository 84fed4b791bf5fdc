package ivshmem

import (
	"fmt"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// listener is who uses a window at the moment. It implements queues.Interrupter.
type listener struct {
	win    *Window
	bell   int
	ring   *ring.Consumer
	closed bool
}

var (
	_ queues.Interrupter = (*listener)(nil)
	_ queues.AdminHolder = (*listener)(nil)
)

// Listen empties the rings of the window and gives them to one user: who takes
// the records that the guest puts in the bell ring, and puts events in the others.
func (w *Window) Listen() (queues.Bell, error) {
	if err := w.claim(); err != nil {
		return nil, fmt.Errorf("ivshmem doorbell: %w", err)
	}
	w.clear()
	return &listener{win: w, bell: w.bell[0], ring: ring.NewConsumer(ring.Mem(w.bells()), bellsLayout)}, nil
}

func (l *listener) FD() int { return l.bell }

// Take implements queues.Bell. An index of the guest's that cannot be true is an
// error.
func (l *listener) Take(b []byte) (n int, err error) {
	ready, err := l.ring.Poll()
	if err != nil {
		return 0, fmt.Errorf("bell ring: %w", err)
	}
	if ready == 0 {
		return 0, nil
	}
	for ; ready > 0 && len(b)-n >= abi.DoorbellSize; ready-- {
		if err := l.ring.Read(b[n : n+abi.DoorbellSize]); err != nil {
			return 0, fmt.Errorf("bell ring: %w", err)
		}
		l.ring.Take()
		n += abi.DoorbellSize
	}
	if err := l.ring.Commit(); err != nil {
		return 0, fmt.Errorf("bell ring: %w", err)
	}
	return n, nil
}

func (l *listener) Arm() (records bool, err error) {
	n, err := l.ring.Arm()
	if err != nil {
		return false, fmt.Errorf("bell ring: %w", err)
	}
	return n > 0, nil
}

// EventQueues implements queues.Interrupter.
func (l *listener) EventQueues() (all []ring.Bytes) {
	for i := range eventQueues {
		all = append(all, ring.Mem(l.win.events(i)))
	}
	return all
}

// Interrupt implements queues.Interrupter: QEMU, or KVM for it, makes an MSI-X
// message of it, now or when the guest unmasks the vector. Vector 0 is not of an event queue.
func (l *listener) Interrupt(queue int) { l.win.Interrupt(1 + queue) }

// AdminQueues implements queues.AdminHolder.
func (l *listener) AdminQueues() (sq, cq ring.Bytes) {
	return ring.Mem(l.win.adminSQ()), ring.Mem(l.win.adminCQ())
}

func (l *listener) Close() {
	if !l.closed {
		l.closed = true
		l.win.unclaim()
	}
}

package ivshmem

import (
	"fmt"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// listener is the current user of a window's rings. It implements queues.Interrupter.
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

// Listen clears the rings of the window and returns their user, which takes the guest's records
// from the bell ring and puts events into the event queues. A window has one user at a time.
func (w *Window) Listen() (queues.Bell, error) {
	if err := w.claim(); err != nil {
		return nil, fmt.Errorf("ivshmem doorbell: %w", err)
	}
	w.clear()
	return &listener{win: w, bell: w.bell[0], ring: ring.NewConsumer(ring.Mem(w.bells()), bellsLayout)}, nil
}

func (l *listener) FD() int { return l.bell }

// Take implements queues.Bell. It returns an error if the guest wrote an impossible index.
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

// Interrupt implements queues.Interrupter. QEMU, or KVM for it, sends an MSI-X message to the
// guest, at once or when the guest unmasks the vector. Vector 0 belongs to the control block, not
// to an event queue.
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

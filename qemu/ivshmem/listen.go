package ivshmem

import (
	"fmt"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// listener is who uses a window's bell at the moment. It implements queues.Bell.
type listener struct {
	win    *Window
	bell   int
	ring   *ring.Consumer
	closed bool
}

// Listen empties the bell ring and returns it to the one who takes the records
// that the guest puts in it.
func (w *Window) Listen() (queues.Bell, error) {
	if err := w.claim(); err != nil {
		return nil, fmt.Errorf("ivshmem doorbell: %w", err)
	}
	mem := w.mem[bellsOffset:][:bellsLayout.Size()]
	clear(mem)
	return &listener{win: w, bell: w.bell, ring: ring.NewConsumer(ring.Mem(mem), bellsLayout)}, nil
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

func (l *listener) Close() {
	if !l.closed {
		l.closed = true
		l.win.unclaim()
	}
}

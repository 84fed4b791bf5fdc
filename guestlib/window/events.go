package window

import (
	"os"
	"sync"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// longAgo is a deadline in the past, which ends reads at once.
var longAgo = time.Unix(1, 0)

// eventQueue is one event queue and the eventfd of its interrupt vector.
type eventQueue struct {
	irq  *os.File // non-blocking: the runtime polls it
	ring *ring.Consumer
}

// listening is the state of Listen.
type listening struct {
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

// stop ends the goroutines. After it returns, none accesses the window.
func (l *listening) stop(queues []*eventQueue) {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	for _, q := range queues {
		_ = q.irq.SetReadDeadline(longAgo)
	}
	l.wg.Wait()
	for _, q := range queues {
		_ = q.irq.SetReadDeadline(time.Time{}) // for the next session
	}
}

// listen takes records and passes them to f. It sleeps while there are none.
func (q *eventQueue) listen(f func(uint32, error)) error {
	var count [8]byte
	var cqns []uint32
	for {
		n, err := q.ring.Poll()
		if err == nil && n == 0 {
			n, err = q.ring.Arm()
		}
		if err != nil {
			return err
		}
		if n == 0 {
			if _, err := q.irq.Read(count[:]); err != nil {
				return err
			}
			continue
		}
		cqns = cqns[:0]
		for range n {
			var record [abi.WindowEventSize]byte
			if err := q.ring.Read(record[:]); err != nil {
				return err
			}
			q.ring.Take()
			var e abi.WindowEvent
			e.Unmarshal(record[:])
			cqns = append(cqns, e.CQN)
		}
		// Commit before f is called, so that later events of these CQs are new records (DRV-1010).
		if err := q.ring.Commit(); err != nil {
			return err
		}
		for _, cqn := range cqns {
			f(cqn, nil)
		}
	}
}

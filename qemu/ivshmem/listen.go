package ivshmem

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// batch is how many records are handed on at once.
const batch = 64

// Listen empties the bell ring and then calls f, from a goroutine of its own,
// with the records that the guest puts in it. An index in the ring that cannot
// be true is given to f as an error, after which nothing more is. f must not keep
// the records. stop waits for a call of f that has begun.
func (w *Window) Listen(f func(records []byte, err error)) (stop func(), err error) {
	if err := w.claim(); err != nil {
		return nil, fmt.Errorf("ivshmem doorbell: %w", err)
	}
	fd, err := unix.FcntlInt(uintptr(w.bell), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		w.unclaim()
		return nil, fmt.Errorf("ivshmem doorbell: %w", err)
	}
	mem := w.mem[bellsOffset:][:bellsLayout.Size()]
	clear(mem)
	l := &listener{
		bell: os.NewFile(uintptr(fd), "doorbell"), done: make(chan struct{}),
		ring: ring.NewConsumer(ring.Mem(mem), bellsLayout), f: f,
	}
	go l.run()
	return func() {
		_ = l.bell.Close()
		<-l.done
		w.unclaim()
	}, nil
}

type listener struct {
	bell *os.File // non-blocking: the runtime polls it
	ring *ring.Consumer
	f    func([]byte, error)
	buf  [batch * abi.DoorbellSize]byte
	done chan struct{}
}

func (l *listener) run() {
	defer close(l.done)
	var count [8]byte
	for {
		if _, err := l.bell.Read(count[:]); err != nil {
			return // stopped
		}
		if err := l.drain(); err != nil {
			l.f(nil, fmt.Errorf("bell ring: %w", err))
			return
		}
	}
}

// drain hands on what is in the ring until it is empty and the guest knows that
// it has to ring again.
func (l *listener) drain() error {
	n, err := l.ring.Poll()
	for err == nil {
		if n == 0 {
			if n, err = l.ring.Arm(); n == 0 {
				return err
			}
			continue
		}
		b := l.buf[:0]
		for range min(n, batch) {
			b = b[:len(b)+abi.DoorbellSize]
			if err := l.ring.Read(b[len(b)-abi.DoorbellSize:]); err != nil {
				return err
			}
			l.ring.Take()
		}
		if err := l.ring.Commit(); err != nil {
			return err
		}
		l.f(b, nil)
		n, err = l.ring.Poll()
	}
	return err
}

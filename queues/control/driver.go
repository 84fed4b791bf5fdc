package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// OpenTimeout is how long a driver waits for a session to be opened.
const OpenTimeout = 10 * time.Second

// Driver holds what a session needs from the driver of a block.
type Driver struct {
	Block  []byte
	Number uint32 // of the session: drawn at random, because no earlier session may have had it
	Call   func() // makes the device check the block

	// Interrupts has an element when the device interrupted, and is closed when it no longer can.
	// If it is nil, the block is polled.
	Interrupts <-chan struct{}
	// After is the driver's clock. It works like time.After.
	After func(time.Duration) <-chan time.Time
}

// Dial opens a session. It gives up when ctx ends, or after OpenTimeout.
func (d Driver) Dial(ctx context.Context) (*Conn, error) {
	b, err := newBlock(d.Block)
	if err != nil {
		return nil, err
	}
	s := &driverSide{block: b, number: d.Number, bell: d.Call, after: d.After, stop: make(chan struct{})}
	for s.number == 0 || s.number == b.word(abi.ControlHeaderOpened) {
		s.number++
	}
	b.set(abi.ControlHeaderOpen, s.number)
	d.Call()
	late := d.After(OpenTimeout)
	for wait := 50 * time.Microsecond; b.word(abi.ControlHeaderOpened) != s.number; wait = min(2*wait, 5*time.Millisecond) {
		select {
		case <-ctx.Done():
			return nil, s.nobody(ctx.Err())
		case <-late:
			return nil, s.nobody(context.DeadlineExceeded)
		case _, ok := <-d.Interrupts:
			if !ok {
				return nil, errors.New("the device's interrupts are gone")
			}
		case <-d.After(wait):
		}
	}
	c := newConn(s, ring.NewConsumer(b.messages(), layout), ring.NewProducer(b.requests(), layout))
	s.wg.Go(func() { s.watch(c, d.Interrupts) })
	return c, nil
}

// nobody withdraws the request for a session that the device did not open, and returns the error.
func (s *driverSide) nobody(why error) error {
	s.block.set(abi.ControlHeaderOpen, 0)
	s.bell()
	return fmt.Errorf("the device opens no session: %w; is the NIC running?", why)
}

// driverSide is the driver's side of a session.
type driverSide struct {
	block  block
	number uint32
	bell   func()
	after  func(time.Duration) <-chan time.Time
	stop   chan struct{}
	wg     sync.WaitGroup
}

// Polling intervals for a block without interrupts: short while there is traffic.
const (
	pollLeast = 50 * time.Microsecond
	pollMost  = 2 * time.Millisecond
)

// watch makes the conn check the block after interrupts and at intervals.
func (s *driverSide) watch(c *Conn, irq <-chan struct{}) {
	wait := pollMost
	if irq != nil {
		wait = 100 * time.Millisecond // room for requests comes without an interrupt
	}
	for {
		select {
		case _, ok := <-irq:
			if !ok {
				irq = nil
			}
		case <-s.after(wait):
			if irq == nil {
				wait = s.pace(wait)
			}
		case <-s.stop:
			return
		}
		c.Look()
	}
}

// pace returns the next polling interval.
func (s *driverSide) pace(wait time.Duration) time.Duration {
	p, _ := s.block.messages().Load32(abi.QueueHeaderProducer)
	c, _ := s.block.messages().Load32(abi.QueueHeaderConsumer)
	if p != c {
		return pollLeast
	}
	return min(2*wait, pollMost)
}

func (s *driverSide) ended() bool { return s.block.word(abi.ControlHeaderOpened) != s.number }

func (s *driverSide) call() { s.bell() }

// took rings if the device waits for room.
func (s *driverSide) took() {
	if s.block.word(abi.ControlHeaderFull) != 0 {
		s.bell()
	}
}

func (s *driverSide) full(bool) {}

// leave ends the session. The device stops using the driver's memory soon. A driver that must know
// when says goodbye first and reads to the end.
func (s *driverSide) leave() {
	close(s.stop)
	s.wg.Wait()
	s.block.set(abi.ControlHeaderOpen, 0)
	s.bell()
}

func (s *driverSide) addr() net.Addr { return addr("control block") }

package control

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// OpenTimeout is how long a driver waits for a session to be opened.
const OpenTimeout = 10 * time.Second

// Dial opens a session as the driver of a block does. call has the device look at the block; irq has
// an element when it interrupted, and is closed when it cannot any more. Without irq, nil, the block
// is looked at again and again.
func Dial(ctx context.Context, mem []byte, call func(), irq <-chan struct{}) (*Conn, error) {
	b, err := newBlock(mem)
	if err != nil {
		return nil, err
	}
	s := &driverSide{block: b, bell: call, stop: make(chan struct{})}
	for s.number == 0 || s.number == b.word(abi.ControlHeaderOpened) {
		s.number = rand.Uint32() // nobody knows that of a driver before
	}
	b.set(abi.ControlHeaderOpen, s.number)
	call()
	ctx, cancel := context.WithTimeout(ctx, OpenTimeout)
	defer cancel()
	for wait := 50 * time.Microsecond; b.word(abi.ControlHeaderOpened) != s.number; wait = min(2*wait, 5*time.Millisecond) {
		select {
		case <-ctx.Done():
			b.set(abi.ControlHeaderOpen, 0)
			call()
			return nil, fmt.Errorf("the device opens no session: %w; is the NIC running?", ctx.Err())
		case _, ok := <-irq:
			if !ok {
				return nil, errors.New("the device's interrupts are gone")
			}
		case <-time.After(wait):
		}
	}
	c := newConn(s, ring.NewConsumer(b.messages(), layout), ring.NewProducer(b.requests(), layout))
	s.wg.Go(func() { s.watch(c, irq) })
	return c, nil
}

// driverSide is a session as the driver has it.
type driverSide struct {
	block  block
	number uint32
	bell   func()
	stop   chan struct{}
	wg     sync.WaitGroup
}

// Polling of a block that does not interrupt: often while something happens.
const (
	pollLeast = 50 * time.Microsecond
	pollMost  = 2 * time.Millisecond
)

// watch has the conn look when the device interrupted.
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
		case <-time.After(wait):
			if irq == nil {
				wait = s.pace(wait)
			}
		case <-s.stop:
			return
		}
		c.Look()
	}
}

// pace is how long to wait before the next look.
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

// took rings where the device waits for room.
func (s *driverSide) took() {
	if s.block.word(abi.ControlHeaderFull) != 0 {
		s.bell()
	}
}

func (s *driverSide) full(bool) {}

// leave ends the session. The device lets go of the driver's memory soon; a driver that has to know
// says goodbye first and reads to the end.
func (s *driverSide) leave() {
	close(s.stop)
	s.wg.Wait()
	s.block.set(abi.ControlHeaderOpen, 0)
	s.bell()
}

func (s *driverSide) addr() net.Addr { return addr("control block") }

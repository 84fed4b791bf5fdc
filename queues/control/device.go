package control

import (
	"net"
	"sync"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// Config is a control block as the device has it.
type Config struct {
	Block     []byte
	Name      string // for logs
	Interrupt func() // raises vector 0; it does not block
	// Clear zeroes what else of the window a session begins with.
	Clear func()
}

// Listener is the device's side of a control block: who waits for drivers.
type Listener struct {
	cfg   Config
	block block

	mu      sync.Mutex
	last    uint32 // number of the session that was open last, or of one that is to be none
	conn    *Conn  // of the session that is open, until it was closed; nil: there is none
	waiting *Conn  // not accepted yet; nil: none
	closed  bool
	come    sync.Cond // waiting or closed changed
}

// Listen begins to serve a block. A session that another process had open ends; one that a driver
// wants and nobody opened is opened.
func Listen(cfg Config) (*Listener, error) {
	b, err := newBlock(cfg.Block)
	if err != nil {
		return nil, err
	}
	l := &Listener{cfg: cfg, block: b}
	l.come.L = &l.mu
	if opened := b.word(abi.ControlHeaderOpened); opened != 0 {
		l.last = opened
		l.over()
	}
	l.Look()
	return l, nil
}

// Look looks what the driver wants: it rang. It does not block.
func (l *Listener) Look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.look()
}

func (l *Listener) look() {
	want := l.block.word(abi.ControlHeaderOpen)
	switch {
	case l.closed:
	case l.conn != nil:
		l.conn.Look() // its reader sees whether the session is over, and closes it
	case want != 0 && want != l.last:
		l.open(want)
	}
}

// open opens a session.
func (l *Listener) open(number uint32) {
	clear(l.block.requests())
	clear(l.block.messages())
	l.block.set(abi.ControlHeaderFull, 0)
	l.cfg.Clear()
	l.last = number
	s := &deviceSide{l, number}
	l.conn = newConn(s, ring.NewConsumer(l.block.requests(), layout), ring.NewProducer(l.block.messages(), layout))
	l.waiting = l.conn
	l.block.set(abi.ControlHeaderOpened, number)
	l.cfg.Interrupt()
	l.come.Signal()
}

// over says that no session is open.
func (l *Listener) over() {
	l.block.set(abi.ControlHeaderOpened, 0)
	l.cfg.Interrupt()
}

// Accept waits for a driver that opens a session. After Close it returns net.ErrClosed.
func (l *Listener) Accept() (*Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.waiting == nil && !l.closed {
		l.come.Wait()
	}
	if l.closed {
		return nil, net.ErrClosed
	}
	c := l.waiting
	l.waiting = nil
	return c, nil
}

// Reset ends the session there is, as the driver does by Open = 0, and forgets what it wanted.
func (l *Listener) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.block.set(abi.ControlHeaderOpen, 0)
	l.last = 0
	if l.conn != nil {
		l.conn.Look()
	}
}

// Close opens no further sessions. One that was accepted lives on.
func (l *Listener) Close() {
	l.mu.Lock()
	l.closed = true
	waiting := l.waiting
	l.waiting = nil
	l.come.Broadcast()
	l.mu.Unlock()
	if waiting != nil {
		_ = waiting.Close()
	}
}

// deviceSide is a session as the device has it.
type deviceSide struct {
	l      *Listener
	number uint32
}

func (s *deviceSide) ended() bool { return s.l.block.word(abi.ControlHeaderOpen) != s.number }

func (s *deviceSide) call() { s.l.cfg.Interrupt() }

func (s *deviceSide) took() {}

func (s *deviceSide) full(waits bool) {
	v := uint32(0)
	if waits {
		v = 1
	}
	s.l.block.set(abi.ControlHeaderFull, v)
}

// leave is called when the device has let go of the driver's memory. The driver may want the next
// session already.
func (s *deviceSide) leave() {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	s.l.over()
	s.l.conn = nil
	s.l.look()
}

func (s *deviceSide) addr() net.Addr { return addr(s.l.cfg.Name) }

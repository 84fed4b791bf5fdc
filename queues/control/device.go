package control

import (
	"net"
	"sync"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// Config holds the device's settings for a control block.
type Config struct {
	Block     []byte
	Name      string // for logs
	Interrupt func() // raises vector 0; it does not block
	// Clear zeroes the other parts of the window for a new session.
	Clear func()
}

// Listener is the device's side of a control block. It waits for drivers.
type Listener struct {
	cfg   Config
	block block

	mu      sync.Mutex
	last    uint32 // number of the last session, or of one that must not be opened
	conn    *Conn  // open session, until it is closed; nil: none
	waiting *Conn  // session not accepted yet; nil: none
	closed  bool
	come    sync.Cond // signalled when waiting or closed changes
}

// Listen begins to serve a block. A session that another process had opened ends. If a driver
// requests a session that nobody has opened, Listen opens it.
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

// Look checks what the driver wants. Call it when the driver rang. It does not block.
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

// over records in the block that no session is open.
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

// Reset ends the current session, as the driver does by Open = 0, and clears the driver's request.
func (l *Listener) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.block.set(abi.ControlHeaderOpen, 0)
	l.last = 0
	if l.conn != nil {
		l.conn.Look()
	}
}

// Close stops opening sessions. A session that was accepted continues.
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

// deviceSide is the device's side of a session.
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

// leave is called when the device no longer uses the driver's memory. The driver may already
// request the next session.
func (s *deviceSide) leave() {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	s.l.over()
	s.l.conn = nil
	s.l.look()
}

func (s *deviceSide) addr() net.Addr { return addr(s.l.cfg.Name) }

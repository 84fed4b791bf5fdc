package qemu

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/falcon-vnic/vnic/qemu/internal/loglimit"
)

// Acceptor is a source of connections: a listening socket, or a process that passes on those that
// it has accepted. After Close, AcceptUnix returns net.ErrClosed.
type Acceptor interface {
	AcceptUnix() (*net.UnixConn, error)
	Close() error
}

// turnstile serves one QEMU at a time on a socket.
type turnstile struct {
	in    Acceptor
	log   *slog.Logger
	warn  loglimit.Limiter
	serve func(conn *net.UnixConn) error // serves a QEMU until it disconnects (nil) or fails
	wg    sync.WaitGroup

	single bool // accept no other connection while one is served

	mu     sync.Mutex
	conn   *net.UnixConn // of the QEMU being served
	idle   chan struct{} // closed while none is served
	closed bool
}

// acceptPause is the pause after a failed accept.
const acceptPause = 100 * time.Millisecond

// handover is how long a new QEMU waits until the previous one is gone: a successor may connect
// before the end of a killed QEMU is noticed.
const handover = 2 * time.Second

// newTurnstile returns a turnstile that accepts no connection before open is called. So serve may
// use the struct in which the caller stores the turnstile.
func newTurnstile(in Acceptor, log *slog.Logger, serve func(*net.UnixConn) error) *turnstile {
	t := &turnstile{in: in, log: log, serve: serve, idle: make(chan struct{})}
	close(t.idle)
	return t
}

func (t *turnstile) open() { t.wg.Go(t.run) }

func (t *turnstile) run() {
	for {
		conn, err := t.in.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors: wait until some are closed
			t.warn.Warn(t.log, "cannot accept QEMU", "error", err)
			time.Sleep(acceptPause)
			continue
		}
		t.admit(conn)
		if t.single {
			t.mu.Lock()
			idle := t.idle
			t.mu.Unlock()
			<-idle
		}
	}
}

// admit begins to serve a QEMU. It disconnects the QEMU if another one is still served after
// handover.
func (t *turnstile) admit(conn *net.UnixConn) {
	t.mu.Lock()
	idle := t.idle
	t.mu.Unlock()
	select {
	case <-idle:
	case <-time.After(handover):
		t.warn.Warn(t.log, "another QEMU uses this socket already; each guest needs its own")
		conn.Close()
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		conn.Close()
		return
	}
	idle = make(chan struct{})
	t.conn, t.idle = conn, idle
	t.wg.Go(func() {
		defer close(idle)
		err := t.serve(conn)
		t.mu.Lock()
		t.conn = nil
		closing := t.closed // then QEMU was disconnected on purpose
		t.mu.Unlock()
		conn.Close()
		if err != nil && !closing {
			t.warn.Warn(t.log, "QEMU disconnected", "reason", err)
		}
	})
}

// closeLimit is how long close waits until a QEMU is gone. Closing a descriptor that QEMU passed
// can block on a program that QEMU's owner controls (close(2) of a file on FUSE). That must not
// keep this process from ending.
const closeLimit = 5 * time.Second

// waitClosed waits, for closeLimit at most, for goroutines that close descriptors passed by
// clients.
func waitClosed(wg *sync.WaitGroup) error {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		wg.Wait()
	}()
	select {
	case <-gone:
		return nil
	case <-time.After(closeLimit):
		return fmt.Errorf("a descriptor that a client passed is not closed after %v", closeLimit)
	}
}

// close stops accepting, disconnects the QEMU being served and waits until it is gone.
func (t *turnstile) close() error {
	t.mu.Lock()
	t.closed = true
	if t.conn != nil {
		t.conn.Close()
	}
	t.mu.Unlock()
	return errors.Join(t.in.Close(), waitClosed(&t.wg))
}

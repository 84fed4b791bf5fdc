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

// Acceptor is where connections come from: a listening socket, or a process that
// hands over those it has accepted. After Close it returns net.ErrClosed.
type Acceptor interface {
	AcceptUnix() (*net.UnixConn, error)
	Close() error
}

// turnstile lets one QEMU at a time in at a socket.
type turnstile struct {
	in    Acceptor
	log   *slog.Logger
	warn  loglimit.Limiter
	serve func(conn *net.UnixConn) error // as long as the QEMU is served; why that ended, nil: it left
	wg    sync.WaitGroup

	single bool // nobody else can come while one is served

	mu     sync.Mutex
	conn   *net.UnixConn // the QEMU served now
	idle   chan struct{} // closed when none is served
	closed bool
}

// acceptPause is how long nobody is accepted who could not be.
const acceptPause = 100 * time.Millisecond

// handover is how long a new QEMU waits for the one before to be gone: the end
// of a killed process and its successor's start race.
const handover = 2 * time.Second

// newTurnstile is closed until open: serve may use what the caller keeps it in.
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
		if err != nil { // out of descriptors: give others time to return some
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

// admit begins to serve a QEMU, or turns it away while another is served.
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
		closing := t.closed // then it leaves because we want it to
		t.mu.Unlock()
		conn.Close()
		if err != nil && !closing {
			t.warn.Warn(t.log, "QEMU disconnected", "reason", err)
		}
	})
}

// closeLimit is how long close waits for a QEMU to be gone. Closing a descriptor that
// QEMU passed may wait for a program of QEMU's (close(2) of a file on FUSE); the end of
// this process must not.
const closeLimit = 5 * time.Second

// waitClosed waits for goroutines that close what others passed.
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

// close lets nobody in any more, disconnects who is served and waits for that.
func (t *turnstile) close() error {
	t.mu.Lock()
	t.closed = true
	if t.conn != nil {
		t.conn.Close()
	}
	t.mu.Unlock()
	return errors.Join(t.in.Close(), waitClosed(&t.wg))
}

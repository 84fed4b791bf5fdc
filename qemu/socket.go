package qemu

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/falcon-vnic/vnic/internal/loglimit"
)

// maxSocketPath is sizeof(sockaddr_un.sun_path) without the terminating zero.
const maxSocketPath = 107

// unixSocket is a listening unix socket with its file.
type unixSocket struct {
	*net.UnixListener
	path string
	file os.FileInfo // nil: the file belongs to another process, which removes it
}

// Socket is a listening unix socket that this process only holds open. Another process accepts on a
// copy of its descriptor.
type Socket struct{ sock *unixSocket }

// KeepSocket listens at path but accepts no connections.
func KeepSocket(path string) (*Socket, error) {
	sock, err := listenUnixSocket(path)
	if err != nil {
		return nil, err
	}
	return &Socket{sock}, nil
}

// File returns a copy of the descriptor, which the caller owns.
func (s *Socket) File() (*os.File, error) { return s.sock.File() }

// Close stops listening and removes the socket file.
func (s *Socket) Close() error { return s.sock.Close() }

// keptSocket returns the listener of a Socket that another process keeps: f is a descriptor that
// listens at path.
func keptSocket(f *os.File, path string) (*unixSocket, error) {
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("socket %s: the descriptor given for it does not listen: %w", path, err)
	}
	ul, ok := l.(*net.UnixListener)
	if !ok || ul.Addr().String() != path {
		return nil, errors.Join(fmt.Errorf("socket %s: the descriptor given for it listens at %s", path, l.Addr()), l.Close())
	}
	ul.SetUnlinkOnClose(false)
	return &unixSocket{UnixListener: ul, path: path}, nil
}

// listenUnixSocket listens on path. It replaces a socket file that a dead process left behind. It
// fails, and leaves the file alone, if another process listens on it or the file is no socket.
func listenUnixSocket(path string) (*unixSocket, error) {
	if path == "" || len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket path %q has %d bytes, want 1 to %d; choose a shorter directory", path, len(path), maxSocketPath)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	ln, err := socketMode.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	l, ok := ln.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("socket %s: it is a %T", path, ln), ln.Close())
	}
	l.SetUnlinkOnClose(false) // Close removes the file, unless another process has replaced it
	fi, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket %s: %w", path, err), l.Close())
	}
	return &unixSocket{l, path, fi}, nil
}

// socketMode creates sockets to which only their owner and, if the umask allows it, their group can
// connect, because any process that connects is treated as the guest. It sets the mode before the
// socket is bound: the socket file then gets that mode, less the umask, and never has another.
var socketMode = net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) { failed = syscall.Fchmod(int(fd), 0o660) })
	return errors.Join(err, failed)
}}

func removeStale(path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("socket %s: %w", path, err)
	}
	if fi.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("socket %s: a %s is in the way; remove it or choose another path", path, kindOf(fi.Mode()))
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		c.Close()
		return fmt.Errorf("socket %s: another process listens on it; stop that process or choose another path", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("socket %s exists and cannot be probed: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("stale socket %s: %w", path, err)
	}
	return nil
}

func kindOf(m os.FileMode) string {
	switch {
	case m.IsDir():
		return "directory"
	case m.IsRegular():
		return "regular file"
	}
	return "file that is not a socket"
}

// Close stops listening. It removes the socket file unless another process has replaced it.
func (s *unixSocket) Close() error {
	err := s.UnixListener.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	if s.file == nil {
		return err
	}
	if fi, serr := os.Lstat(s.path); serr == nil && os.SameFile(fi, s.file) {
		err = errors.Join(err, os.Remove(s.path))
	}
	return err
}

// Acceptor is a source of connections: a listening socket, or a process that passes on those that
// it has accepted. After Close, AcceptUnix returns net.ErrClosed.
type Acceptor interface {
	AcceptUnix() (*net.UnixConn, error)
	Close() error
}

// server serves one QEMU at a time on a socket.
type server struct {
	in    Acceptor
	log   loglimit.Log
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

// newServer returns a server that accepts no connection before start is called. So serve may use
// the struct in which the caller stores the server.
func newServer(in Acceptor, log *slog.Logger, serve func(*net.UnixConn) error) *server {
	s := &server{in: in, log: loglimit.Log{To: log}, serve: serve, idle: make(chan struct{})}
	_, s.single = in.(*caller) // a front end that listens serves one connection at a time, too
	close(s.idle)
	return s
}

func (s *server) start() { s.wg.Go(s.run) }

func (s *server) run() {
	for {
		conn, err := s.in.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors: wait until some are closed
			s.log.Warn("cannot accept QEMU", "error", err)
			time.Sleep(acceptPause)
			continue
		}
		s.admit(conn)
		if s.single {
			s.mu.Lock()
			idle := s.idle
			s.mu.Unlock()
			<-idle
		}
	}
}

// admit begins to serve a QEMU. It disconnects the QEMU if another one is still served after
// handover.
func (s *server) admit(conn *net.UnixConn) {
	s.mu.Lock()
	idle := s.idle
	s.mu.Unlock()
	select {
	case <-idle:
	case <-time.After(handover):
		s.log.Warn("another QEMU uses this socket already; each guest needs its own")
		conn.Close()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.Close()
		return
	}
	idle = make(chan struct{})
	s.conn, s.idle = conn, idle
	s.wg.Go(func() {
		defer close(idle)
		err := s.serve(conn)
		s.mu.Lock()
		s.conn = nil
		closing := s.closed // then QEMU was disconnected on purpose
		s.mu.Unlock()
		conn.Close()
		if err != nil && !closing {
			s.log.Warn("QEMU disconnected", "reason", err)
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
func (s *server) close() error {
	s.mu.Lock()
	s.closed = true
	if s.conn != nil {
		s.conn.Close()
	}
	s.mu.Unlock()
	return errors.Join(s.in.Close(), waitClosed(&s.wg))
}

// ListenNet returns an Acceptor that listens at path for front ends of a port.
func ListenNet(path string) (Acceptor, error) {
	s, err := listenUnixSocket(path)
	if err != nil {
		return nil, fmt.Errorf("vhost-user: %w", err)
	}
	return s, nil
}

// CallNet returns an Acceptor for front ends that listen themselves (QEMU's server=on). It connects
// to path, and connects again after each front end is gone.
func CallNet(path string) (Acceptor, error) {
	if path == "" || len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket path %q has %d bytes, want 1 to %d; choose a shorter directory", path, len(path), maxSocketPath)
	}
	return &caller{path: path, done: make(chan struct{})}, nil
}

// caller is an Acceptor that connects to a listening front end.
type caller struct {
	path string
	once sync.Once
	done chan struct{}
}

// callPause is the pause between two attempts of a caller to connect.
const callPause = 100 * time.Millisecond

// AcceptUnix implements Acceptor.
func (c *caller) AcceptUnix() (*net.UnixConn, error) {
	for {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: c.path, Net: "unix"})
		select {
		case <-c.done:
			if err == nil {
				conn.Close()
			}
			return nil, net.ErrClosed
		default:
		}
		if err == nil {
			return conn, nil
		}
		select {
		case <-c.done:
			return nil, net.ErrClosed
		case <-time.After(callPause):
		}
	}
}

// Close implements Acceptor.
func (c *caller) Close() error {
	c.once.Do(func() { close(c.done) })
	return nil
}

package qemu

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/internal/loglimit"
	"github.com/falcon-vnic/vnic/queues"
)

// ListenUnix attaches bare clients, without a VM, on a unix socket at path. A
// client starts with the memory preamble (see preamble.go) and then speaks the
// same stream as a guest over vsock. A client whose preamble is refused gets the
// reason and never becomes a session.
func ListenUnix(path string) (queues.Attachment, error) {
	sock, err := listenUnixSocket(path)
	if err != nil {
		return nil, fmt.Errorf("unix attachment: %w", err)
	}
	return serveUnix(sock), nil
}

// ServeUnix is ListenUnix on a Socket that another process keeps, of which f is a
// copy. It consumes f.
func ServeUnix(f *os.File, path string) (queues.Attachment, error) {
	defer f.Close()
	sock, err := keptSocket(f, path)
	if err != nil {
		return nil, fmt.Errorf("unix attachment: %w", err)
	}
	return serveUnix(sock), nil
}

func serveUnix(sock *unixSocket) *unixAttachment {
	a := &unixAttachment{
		sock:  sock,
		ready: make(chan *unixSession),
		done:  make(chan struct{}),
		slots: make(chan struct{}, maxHandshakes),
		busy:  make(map[*net.UnixConn]struct{}),
	}
	a.wg.Add(1)
	go a.acceptLoop()
	return a
}

const (
	// maxHandshakes bounds the clients whose preamble is being read or that wait
	// for Accept; more wait in the socket's backlog.
	maxHandshakes = 16
	// preambleTimeout bounds how long one of them may take.
	preambleTimeout = 5 * time.Second
)

type unixAttachment struct {
	sock  *unixSocket
	ready chan *unixSession
	done  chan struct{}
	slots chan struct{}
	wg    sync.WaitGroup
	warn  loglimit.Limiter

	mu     sync.Mutex
	busy   map[*net.UnixConn]struct{} // in their preamble
	closed bool
}

func (a *unixAttachment) acceptLoop() {
	defer a.wg.Done()
	for {
		select {
		case a.slots <- struct{}{}:
		case <-a.done:
			return
		}
		conn, err := a.sock.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			a.warn.Warn(slog.Default(), "cannot accept a client", "socket", a.sock.path, "error", err)
			time.Sleep(100 * time.Millisecond)
			<-a.slots
			continue
		}
		a.mu.Lock()
		closed := a.closed
		if !closed {
			a.busy[conn] = struct{}{}
			a.wg.Add(1)
		}
		a.mu.Unlock()
		if closed {
			conn.Close()
			return
		}
		go a.handshake(conn)
	}
}

func (a *unixAttachment) handshake(conn *net.UnixConn) {
	defer a.wg.Done()
	defer func() { <-a.slots }()
	_ = conn.SetDeadline(time.Now().Add(preambleTimeout))
	s, err := newUnixSession(conn)
	a.mu.Lock()
	delete(a.busy, conn)
	closed := a.closed // a client that comes at the end is not refused for what it did
	a.mu.Unlock()
	if err != nil {
		if !closed {
			a.warn.Warn(slog.Default(), "client refused", "socket", a.sock.path, "reason", err)
		}
		conn.Close()
		return
	}
	_ = conn.SetDeadline(time.Time{})
	select {
	case a.ready <- s:
	case <-a.done:
		s.Close()
	}
}

func (a *unixAttachment) Accept() (queues.Session, error) {
	select {
	case s := <-a.ready:
		return s, nil
	case <-a.done:
		return nil, net.ErrClosed
	}
}

func (a *unixAttachment) Addr() string { return "unix:" + a.sock.path }

func (a *unixAttachment) Close() error {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil
	}
	a.closed = true
	close(a.done)
	for conn := range a.busy {
		conn.Close()
	}
	a.mu.Unlock()
	err := a.sock.Close()
	a.wg.Wait()
	return err
}

// unixSession is one client. Its memory lives until Close.
type unixSession struct {
	*net.UnixConn
	peer  queues.Peer
	ram   ram
	maps  [][]byte
	close sync.Once
}

func newUnixSession(conn *net.UnixConn) (*unixSession, error) {
	peer, err := peerCredentials(conn)
	if err != nil {
		return nil, err
	}
	regions, maps, err := receivePreamble(conn)
	if err != nil {
		return nil, err
	}
	s := &unixSession{UnixConn: conn, peer: peer, maps: maps}
	s.ram.set(regions)
	return s, nil
}

func peerCredentials(conn *net.UnixConn) (queues.Peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return queues.Peer{}, err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return queues.Peer{}, err
	}
	if cerr != nil {
		return queues.Peer{}, fmt.Errorf("peer credentials: %w", cerr)
	}
	return queues.Peer{Transport: "unix", PID: int(cred.Pid), UID: int(cred.Uid)}, nil
}

func (s *unixSession) Peer() queues.Peer { return s.peer }

func (s *unixSession) Watch(f func([]queues.Region)) (stop func()) { return s.ram.watch(f) }

// Close ends the stream at once. The memory is unmapped when the watchers have
// let go of it, which Close does not wait for: it may be called by what they
// wait for.
func (s *unixSession) Close() error {
	err := s.UnixConn.Close()
	s.close.Do(func() {
		go func() {
			s.ram.set(nil)
			unmapAll(s.maps)
		}()
	})
	return err
}

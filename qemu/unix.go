package qemu

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/qemu/internal/loglimit"
	"github.com/falcon-vnic/vnic/queues"
)

// ListenUnix attaches bare clients, without a VM, on a unix socket at path. A
// client starts with the memory preamble (see preamble.go) and then speaks the
// same stream as a guest over vsock. A client whose preamble is refused gets the
// reason and never becomes a session. One client may map at most a clientShare-th of the budget
// memory. If memory is nil, the budget is guestmem.Attachment.
func ListenUnix(path string, memory *guestmem.Budget) (queues.Attachment, error) {
	sock, err := listenUnixSocket(path)
	if err != nil {
		return nil, fmt.Errorf("unix attachment: %w", err)
	}
	return serveUnix(sock, memory), nil
}

// ServeUnix is like ListenUnix on a Socket that another process keeps. f is a copy of that socket's
// descriptor; ServeUnix closes it.
func ServeUnix(f *os.File, path string, memory *guestmem.Budget) (queues.Attachment, error) {
	defer f.Close()
	sock, err := keptSocket(f, path)
	if err != nil {
		return nil, fmt.Errorf("unix attachment: %w", err)
	}
	return serveUnix(sock, memory), nil
}

func serveUnix(sock *unixSocket, memory *guestmem.Budget) *unixAttachment {
	if memory == nil {
		memory = guestmem.NewBudget(sock.path, guestmem.Attachment)
	}
	a := &unixAttachment{
		sock:  sock,
		mem:   memory,
		ready: make(chan *unixSession),
		done:  make(chan struct{}),
	}
	a.wg.Add(1)
	go a.acceptLoop()
	return a
}

const (
	// maxHandshakes bounds the clients whose preamble is being read or that wait for Accept. When
	// there are that many, a new client displaces the oldest. Clients that connect and send nothing
	// therefore block nobody, since a proper client sends its preamble at once.
	maxHandshakes = 64
	// preambleTimeout bounds how long a client may take to send its preamble and read the answer.
	preambleTimeout = 5 * time.Second
	// clientShare is the divisor of the attachment's memory budget: one client may map this part of
	// it.
	clientShare = 16
)

type unixAttachment struct {
	sock  *unixSocket
	mem   *guestmem.Budget
	ready chan *unixSession
	done  chan struct{}
	wg    sync.WaitGroup
	warn  loglimit.Limiter

	mu     sync.Mutex
	busy   []*handshake // oldest first
	closed bool
}

// handshake is a client that is not yet a session.
type handshake struct {
	conn *net.UnixConn
	gone chan struct{} // closed when a newer client has displaced it
}

var errMadeRoom = errors.New("it took longer than others that came later")

func (a *unixAttachment) acceptLoop() {
	defer a.wg.Done()
	for {
		conn, err := a.sock.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			a.warn.Warn(slog.Default(), "cannot accept a client", "socket", a.sock.path, "error", err)
			time.Sleep(acceptPause)
			continue
		}
		if !a.begin(conn) {
			conn.Close()
			return
		}
	}
}

// begin starts a goroutine that reads a client's preamble. It returns false if the attachment is
// closed.
func (a *unixAttachment) begin(conn *net.UnixConn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	if len(a.busy) == maxHandshakes {
		close(a.busy[0].gone)
		a.busy[0].conn.Close()
		a.busy = slices.Delete(a.busy, 0, 1)
	}
	h := &handshake{conn, make(chan struct{})}
	a.busy = append(a.busy, h)
	a.wg.Go(func() { a.handshake(h) })
	return true
}

func (a *unixAttachment) handshake(h *handshake) {
	_ = h.conn.SetDeadline(time.Now().Add(preambleTimeout))
	s, err := newUnixSession(h.conn, a.mem.Share("a client of "+a.sock.path, clientShare))
	if err == nil {
		_ = h.conn.SetDeadline(time.Time{})
		select {
		case a.ready <- s:
		case <-h.gone:
			s.Close()
		case <-a.done:
			s.Close()
		}
	}
	a.mu.Lock()
	closed := a.closed // then the handshake failed because of Close, not because of the client
	a.busy = slices.DeleteFunc(a.busy, func(o *handshake) bool { return o == h })
	a.mu.Unlock()
	if err == nil {
		return
	}
	select {
	case <-h.gone:
		err = errMadeRoom
	default:
	}
	if !closed {
		a.warn.Warn(slog.Default(), "client refused", "socket", a.sock.path, "reason", err)
	}
	h.conn.Close()
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
	for _, h := range a.busy {
		h.conn.Close()
	}
	a.mu.Unlock()
	return errors.Join(a.sock.Close(), waitClosed(&a.wg))
}

// unixSession is the session of one client. Its memory is mapped until Close.
type unixSession struct {
	*net.UnixConn
	peer  queues.Peer
	ram   ram
	maps  []*guestmem.Mapping
	close sync.Once
}

func newUnixSession(conn *net.UnixConn, memory *guestmem.Budget) (*unixSession, error) {
	peer, err := peerCredentials(conn)
	if err != nil {
		return nil, err
	}
	regions, maps, err := receivePreamble(conn, memory)
	if err != nil {
		return nil, err
	}
	s := &unixSession{UnixConn: conn, peer: peer, maps: maps}
	s.ram.set(queues.NewRegions(regions))
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

func (s *unixSession) Watch(f func(queues.Regions)) (stop func()) { return s.ram.watch(f) }

// Close closes the stream at once. The memory is unmapped after the watchers have released it.
// Close does not wait for that, since a watcher may be waiting for the caller of Close.
func (s *unixSession) Close() error {
	err := s.UnixConn.Close()
	s.close.Do(func() {
		go func() {
			s.ram.set(queues.Regions{})
			unmapAll(s.maps)
		}()
	})
	return err
}

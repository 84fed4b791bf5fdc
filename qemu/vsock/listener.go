package vsock

import (
	"fmt"
	"net"
	"sync"
	"syscall"
)

// Listener accepts the flows that the peer opens to one port. It implements net.Listener.
type Listener struct {
	t       *Transport
	addr    Addr
	cond    sync.Cond
	backlog []*Conn
	closed  bool
}

// Listen accepts flows to a local port.
func (t *Transport) Listen(port uint32) (*Listener, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, net.ErrClosed
	}
	if t.listeners[port] != nil {
		return nil, fmt.Errorf("vsock port %d: %w", port, syscall.EADDRINUSE)
	}
	l := &Listener{t: t, addr: Addr{t.local, port}}
	l.cond.L = &t.mu
	t.listeners[port] = l
	return l, nil
}

// Accept returns the next flow as a net.Conn.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.AcceptConn()
	if err != nil {
		return nil, err
	}
	return c, nil
}

// AcceptConn returns the next flow. After Close it returns net.ErrClosed. It also returns a flow
// that the peer has reset since; reading that flow fails.
func (l *Listener) AcceptConn() (*Conn, error) {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	for len(l.backlog) == 0 && !l.closed {
		l.cond.Wait()
	}
	if l.closed {
		return nil, net.ErrClosed
	}
	c := l.backlog[0]
	l.backlog[0] = nil
	l.backlog = l.backlog[1:]
	return c, nil
}

// Addr returns the local address.
func (l *Listener) Addr() net.Addr { return l.addr }

// Close stops accepting and resets the flows that were not accepted.
func (l *Listener) Close() error {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	l.close()
	l.t.pump()
	return nil
}

func (l *Listener) close() {
	if l.closed {
		return
	}
	l.closed = true
	delete(l.t.listeners, l.addr.Port)
	for _, c := range l.backlog {
		c.abort(net.ErrClosed)
	}
	l.backlog = nil
	l.cond.Broadcast()
}

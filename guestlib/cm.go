package guestlib

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/falcon-vnic/vnic/guestlib/arena"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// MaxPrivate is the largest size of the private data of a connection request, of its answer or of
// its rejection, in bytes.
const MaxPrivate = abi.PrivateMax

// listenBacklog is the number of connection requests that can wait for Accept; more are rejected.
const listenBacklog = 32

// cm holds the function's connections and listeners.
type cm struct {
	mu        sync.Mutex
	conns     map[uint32]*conn // by connection id
	listeners map[uint64]*Listener
}

// conn is a connection, or an attempt to make one.
type conn struct {
	qp *QP
	id uint32 // connection id

	// Guarded by cm.mu.
	settled bool // outcome was sent
	ended   bool

	outcome chan abi.AsyncEvent // capacity 1: how the attempt ended
	down    chan struct{}       // closed when the connection has ended
}

func (c *cm) init() {
	c.conns = map[uint32]*conn{}
	c.listeners = map[uint64]*Listener{}
}

func newConn(qp *QP) *conn {
	return &conn{qp: qp, outcome: make(chan abi.AsyncEvent, 1), down: make(chan struct{})}
}

// add registers c for events of connection id.
func (m *cm) add(id uint32, c *conn) {
	m.mu.Lock()
	c.id = id
	m.conns[id] = c
	m.mu.Unlock()
}

// event handles the events of connections. It runs in the reader goroutine.
func (m *cm) event(d *Device, e *abi.AsyncEvent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.conns[e.Number]
	if c == nil {
		return // this side has given it up since
	}
	if e.Type == abi.EventEstablished {
		c.qp.state.CompareAndSwap(uint32(abi.QPStateInit), uint32(abi.QPStateRTS))
	}
	if !c.settled { // before down is closed, so that a waiter for down finds the outcome
		c.settled = true
		c.outcome <- *e
	}
	if e.Type == abi.EventDisconnected {
		c.qp.setError()
	}
	if e.Type != abi.EventEstablished {
		delete(m.conns, e.Number)
		c.end()
	}
	if e.Type == abi.EventDisconnected {
		d.events.emit(Event{Type: e.Type, QP: c.qp, Status: e.Status, Reason: "the peer or its NIC ended the connection"})
		c.qp.sendCQ.signal()
		c.qp.recvCQ.signal()
	}
}

// forget removes the connection of a QP that is destroyed or in RESET.
func (m *cm) forget(q *QP) {
	q.mu.Lock()
	c := q.conn
	q.conn = nil
	q.mu.Unlock()
	if c == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conns[c.id] == c {
		delete(m.conns, c.id)
	}
	c.end()
}

// end closes c.down unless it is closed. The caller holds cm.mu.
func (c *conn) end() {
	if !c.ended {
		c.ended = true
		close(c.down)
	}
}

// clear removes all connections and listeners after a reset of the function.
func (m *cm) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns {
		c.end()
	}
	clear(m.conns)
	clear(m.listeners)
}

// begin creates the connection attempt of the QP. A QP has one at a time.
func (q *QP) begin() (*conn, error) {
	if s := q.State(); s != abi.QPStateInit {
		return nil, stateError("QP %d is in %s; only a QP in INIT can be connected", q.qpn, s)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.conn != nil {
		return nil, stateError("QP %d is being connected", q.qpn)
	}
	q.conn = newConn(q)
	return q.conn, nil
}

// abandon ends a failed attempt, so that the QP can try again.
func (q *QP) abandon(c *conn) {
	q.mu.Lock()
	if q.conn == c {
		q.conn = nil
	}
	q.mu.Unlock()
}

// private copies private data to memory that the device can read. free must be called after the
// command.
func private(pool *arena.Pool, priv []byte) (addr uint64, free func(), err error) {
	if len(priv) > MaxPrivate {
		return 0, nil, invalid("private data of %d bytes; at most %d", len(priv), MaxPrivate)
	}
	if len(priv) == 0 {
		return 0, func() {}, nil
	}
	b, err := pool.Store(priv)
	if err != nil {
		return 0, nil, err
	}
	return b.Pages()[0], b.Free, nil
}

// Connect connects qp to the listener of service at gid and returns the private data of the peer's
// acceptance. The error is a *RejectedError if the peer rejected the request, or its NIC because
// there is no listener, or ErrUnreachable. In these cases the QP stays in INIT and can try again.
// Post receives before Connect, because the peer may send at once.
func (d *Device) Connect(ctx context.Context, qp *QP, gid GID, service uint64, priv []byte) ([]byte, error) {
	c, err := qp.begin()
	if err != nil {
		return nil, err
	}
	addr, free, err := private(d.pool, priv)
	if err != nil {
		qp.abandon(c)
		return nil, err
	}
	in := abi.CMConnect{QPN: qp.qpn, Service: service, DGID: gid, Priv: addr, PrivLen: uint16(len(priv))}
	err = qp.pd.admin.do(ctx, abi.AdminOpCMConnect, &in, nil, func(e *abi.AdminCQE) {
		if e.Status == abi.StatusOK {
			var r abi.CMConnectResult
			r.Unmarshal(e.Result[:])
			d.cm.add(r.CMID, c) // before the reader can get an event for it
		}
	})
	free()
	if err != nil {
		qp.abandon(c)
		return nil, fmt.Errorf("connect to %s service %d: %w", gid, service, err)
	}
	answer, err := c.settle(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to %s service %d: %w", gid, service, err)
	}
	return answer, nil
}

// settle waits for the outcome of an attempt and returns the peer's private data.
func (c *conn) settle(ctx context.Context) ([]byte, error) {
	var e abi.AsyncEvent
	select {
	case e = <-c.outcome:
	case <-c.qp.pd.admin.ended:
		return nil, c.qp.pd.admin.failure()
	case <-c.down: // the QP was destroyed, or there is an outcome too
		select {
		case e = <-c.outcome:
		default:
			return nil, fmt.Errorf("QP %d: %w", c.qp.qpn, ErrClosed)
		}
	case <-ctx.Done():
		// The device moves the QP to ERR, because the peer may be connected already.
		err := c.qp.pd.admin.do(context.WithoutCancel(ctx), abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: c.id}, nil, nil)
		c.qp.setError()
		if err != nil && !gone(err) {
			return nil, errors.Join(ctx.Err(), err)
		}
		return nil, ctx.Err()
	}
	priv := append([]byte(nil), e.Priv[:e.PrivLen]...)
	switch e.Type {
	case abi.EventEstablished:
		return priv, nil
	case abi.EventRejected:
		c.qp.abandon(c)
		return nil, &RejectedError{Reason: e.Status, Private: priv}
	case abi.EventUnreachable:
		c.qp.abandon(c)
		return nil, fmt.Errorf("%w: %s", ErrUnreachable, abi.Status(e.Status))
	}
	return nil, fmt.Errorf("%w: the peer disconnected", ErrRefused)
}

// Disconnect ends the connection and waits until it is down: both QPs move to ERR and flush.
func (q *QP) Disconnect(ctx context.Context) error {
	q.mu.Lock()
	c := q.conn
	q.mu.Unlock()
	if c == nil {
		return stateError("QP %d is not connected", q.qpn)
	}
	q.dev.cm.mu.Lock()
	id, settled := c.id, c.settled
	q.dev.cm.mu.Unlock()
	if !settled {
		return stateError("QP %d is being connected: cancel that", q.qpn)
	}
	if err := q.pd.admin.do(ctx, abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: id}, nil, nil); err != nil {
		if errors.Is(err, ErrNotFound) {
			return nil // the peer has disconnected first
		}
		return fmt.Errorf("disconnect: %w", err)
	}
	select {
	case <-c.down:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("disconnect: %w", ctx.Err())
	case <-q.pd.admin.ended:
		return q.pd.admin.failure()
	}
}

// Down returns a channel that is closed when the QP's connection has ended, or nil if it has none.
func (q *QP) Down() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.conn == nil {
		return nil
	}
	return q.conn.down
}

// Listener waits for connection requests to a service.
type Listener struct {
	dev      *Device
	admin    *admin
	service  uint64
	requests chan *ConnectRequest
	closed   chan struct{}
	ended    end
}

// Listen listens for connection requests to service. It returns ErrBusy if the function already has
// a listener for it.
func (d *Device) Listen(ctx context.Context, service uint64) (*Listener, error) {
	l := &Listener{dev: d, admin: d.admin.Load(), service: service, requests: make(chan *ConnectRequest, listenBacklog), closed: make(chan struct{})}
	d.cm.mu.Lock()
	if d.cm.listeners[service] != nil {
		d.cm.mu.Unlock()
		return nil, fmt.Errorf("listen on service %d: %w", service, ErrBusy)
	}
	d.cm.listeners[service] = l // before the first request can come
	d.cm.mu.Unlock()
	if err := l.admin.do(ctx, abi.AdminOpCMListen, &abi.CMListen{Service: service}, nil, nil); err != nil {
		l.remove()
		return nil, fmt.Errorf("listen on service %d: %w", service, err)
	}
	return l, nil
}

func (l *Listener) remove() {
	l.dev.cm.mu.Lock()
	if l.dev.cm.listeners[l.service] == l {
		delete(l.dev.cm.listeners, l.service)
	}
	l.dev.cm.mu.Unlock()
}

// Accept returns the next connection request, which the caller must accept or reject.
func (l *Listener) Accept(ctx context.Context) (*ConnectRequest, error) {
	select {
	case r := <-l.requests:
		return r, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.closed:
		return nil, fmt.Errorf("listener of service %d: %w", l.service, ErrClosed)
	case <-l.admin.ended:
		return nil, l.admin.failure()
	}
}

// Close stops listening, and rejects the requests that Accept has not returned.
func (l *Listener) Close(ctx context.Context) error {
	return l.ended.once(func() error {
		err := l.admin.do(ctx, abi.AdminOpCMUnlisten, &abi.CMUnlisten{Service: l.service}, nil, nil)
		if err == nil || gone(err) {
			l.remove()
			close(l.closed)
			for len(l.requests) > 0 {
				select {
				case r := <-l.requests:
					r.refuse()
				default: // Accept was faster
				}
			}
		}
		return err
	})
}

// ConnectRequest is a peer's connection request.
type ConnectRequest struct {
	Service uint64
	GID     GID    // of the peer
	QPN     uint32 // of the peer
	Private []byte // of the peer

	dev   *Device
	admin *admin
	id    uint32
}

// request passes a connection request to its listener. It runs in the reader goroutine and must not
// block.
func (m *cm) request(d *Device, e *abi.AsyncEvent) {
	r := &ConnectRequest{
		Service: e.Service, GID: e.SrcGID, QPN: e.PeerQPN, Private: append([]byte(nil), e.Priv[:e.PrivLen]...),
		dev: d, admin: d.admin.Load(), id: e.Number,
	}
	if !m.pass(r) {
		r.refuse()
	}
}

// pass queues a request at its listener, if there is one and it has room. It does so under mu, so
// that Close of the listener finds every request that was queued.
func (m *cm) pass(r *ConnectRequest) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.listeners[r.Service]
	if l == nil {
		return false
	}
	select {
	case l.requests <- r:
		return true
	default:
		return false
	}
}

// refuse rejects a request as if nobody listened. If the admin queue is full, the peer runs into its own timeout.
func (r *ConnectRequest) refuse() {
	r.admin.tryPost(abi.AdminOpCMReject, &abi.CMReject{CMID: r.id, Reason: uint32(abi.StatusRefused)})
}

// Accept connects qp, which must be in INIT, with the peer and sends it priv. Post receives before
// Accept, because the peer may send at once. When Accept returns the connection is up.
func (r *ConnectRequest) Accept(ctx context.Context, qp *QP, priv []byte) error {
	d := r.dev
	if qp.pd.admin != r.admin {
		return fmt.Errorf("accept of a request, or with a QP, from before a reset: %w", ErrClosed)
	}
	c, err := qp.begin()
	if err != nil {
		return err
	}
	addr, free, err := private(d.pool, priv)
	if err != nil {
		qp.abandon(c)
		return err
	}
	d.cm.add(r.id, c)
	err = r.admin.do(ctx, abi.AdminOpCMAccept, &abi.CMAccept{CMID: r.id, QPN: qp.qpn, Priv: addr, PrivLen: uint16(len(priv))}, nil, nil)
	free()
	if err != nil {
		d.cm.forget(qp)
		return fmt.Errorf("accept: %w", err)
	}
	if _, err := c.settle(ctx); err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	return nil
}

// Reject rejects the request, with a reason of the caller's choice and priv.
func (r *ConnectRequest) Reject(ctx context.Context, reason uint32, priv []byte) error {
	addr, free, err := private(r.dev.pool, priv)
	if err != nil {
		return err
	}
	defer free()
	return r.admin.do(ctx, abi.AdminOpCMReject, &abi.CMReject{CMID: r.id, Reason: reason, Priv: addr, PrivLen: uint16(len(priv))}, nil, nil)
}

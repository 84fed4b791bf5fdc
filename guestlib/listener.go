package guestlib

import (
	"context"
	"fmt"

	"github.com/falcon-vnic/vnic/queues/abi"
)

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

// Close stops listening. The device rejects requests that are not answered yet.
func (l *Listener) Close(ctx context.Context) error {
	return l.ended.once(func() error {
		err := l.admin.do(ctx, abi.AdminOpCMUnlisten, &abi.CMUnlisten{Service: l.service}, nil, nil)
		if err == nil || gone(err) {
			l.remove()
			close(l.closed)
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
	m.mu.Lock()
	l := m.listeners[e.Service]
	m.mu.Unlock()
	if l != nil {
		select {
		case l.requests <- r:
			return
		default:
		}
	}
	// If the admin queue is full too, the peer runs into its own timeout.
	r.admin.tryPost(abi.AdminOpCMReject, &abi.CMReject{CMID: e.Number, Reason: uint32(abi.StatusRefused)})
}

// Accept connects qp, which must be in INIT, with the peer and sends it priv. Post receives before
// Accept, because the peer may send at once. When Accept returns the connection is up.
func (r *ConnectRequest) Accept(ctx context.Context, qp *QP, priv []byte) error {
	d := r.dev
	if qp.pd.admin != r.admin {
		return fmt.Errorf("accept of a request or with a QP of before a reset: %w", ErrClosed)
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

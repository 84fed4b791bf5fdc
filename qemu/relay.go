package qemu

import (
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/falcon-vnic/vnic/qemu/vhostuser"
	"github.com/falcon-vnic/vnic/qemu/vsock"
)

// VhostRelay is the vsock device of one guest as its QEMU sees it, without the
// rings: those are run by a worker, another process with a VhostUser, which may
// go and be replaced while QEMU stays. QEMU does not reconnect, so it must not
// notice.
//
//	QEMU ──unix socket──► VhostRelay ──Connect──► ServeVhostUser (worker)
type VhostRelay struct {
	cid  uint32
	log  *slog.Logger
	door *turnstile

	mu      sync.Mutex
	connect func() (*net.UnixConn, error) // to the worker; nil: there is none
	now     *vhostuser.Relay              // of the QEMU served; nil: none
}

// workerLimit is how long a worker may take to answer what QEMU asks: it waits for
// what uses the guest's memory.
const workerLimit = 30 * time.Second

// ListenVhostRelay is ListenVhostUser without the rings.
func ListenVhostRelay(path string, cid uint32, opt VhostOptions) (*VhostRelay, error) {
	if err := checkCID(path, cid); err != nil {
		return nil, err
	}
	sock, err := listenUnixSocket(path)
	if err != nil {
		return nil, fmt.Errorf("vhost-user: %w", err)
	}
	r := &VhostRelay{cid: cid, log: opt.logger().With("socket", path, "guest_cid", cid)}
	r.door = openTurnstile(sock, r.log, r.serve)
	return r, nil
}

func (r *VhostRelay) serve(conn *net.UnixConn) {
	relay := vhostuser.NewRelay(vhostFeatures, func(off uint32, b []byte) bool { return vsock.Config(r.cid, off, b) }, workerLimit, func(err error) {
		r.door.warn.Warn(r.log, "the guest's device waits for the next worker", "reason", err)
	})
	r.mu.Lock()
	r.now = relay
	r.attach()
	r.mu.Unlock()
	err := vhostuser.Serve(conn, relay)
	r.mu.Lock()
	r.now = nil
	r.mu.Unlock()
	relay.Detach()
	if err != nil && !r.door.closing() {
		r.door.warn.Warn(r.log, "QEMU disconnected", "reason", err)
	}
}

// Attach makes connect the way to the worker, for this QEMU and those to come.
func (r *VhostRelay) Attach(connect func() (*net.UnixConn, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.connect = connect
	r.attach()
}

// attach joins QEMU and worker if both are there.
func (r *VhostRelay) attach() {
	if r.now == nil || r.connect == nil {
		return
	}
	conn, err := r.connect()
	if err == nil {
		err = r.now.Attach(conn)
	}
	if err != nil {
		r.door.warn.Warn(r.log, "the guest's device is not with the worker", "reason", err)
	}
}

// Detach says that the worker is gone.
func (r *VhostRelay) Detach() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.connect = nil
	if r.now != nil {
		r.now.Detach()
	}
}

// Close disconnects QEMU and removes the socket file.
func (r *VhostRelay) Close() error { return r.door.close() }

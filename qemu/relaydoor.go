package qemu

import (
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// relayDoor joins the QEMU of one device with the worker that runs its rings. Either may go and be
// replaced while the other stays.
type relayDoor struct {
	log  *slog.Logger
	door *turnstile

	mu      sync.Mutex
	connect func() (*net.UnixConn, error) // to the worker; nil: there is none
	now     *vhostuser.Relay              // of the QEMU served; nil: none
}

// workerLimit is how long a worker may take to answer what QEMU asks: it waits for
// what uses the guest's memory.
const workerLimit = 30 * time.Second

// open lets QEMUs in. begin is told of each, and may see what it says before the relay does.
func (r *relayDoor) open(in Acceptor, log *slog.Logger, dev vhostuser.Relayed, begin func(*vhostuser.Relay) vhostuser.Device) {
	r.log = log
	r.door = newTurnstile(in, log, func(conn *net.UnixConn) error { return r.serve(conn, dev, begin) })
	_, r.door.single = in.(*caller)
	r.door.open()
}

func (r *relayDoor) serve(conn *net.UnixConn, dev vhostuser.Relayed, begin func(*vhostuser.Relay) vhostuser.Device) error {
	relay := vhostuser.NewRelay(dev, workerLimit, func(err error) {
		r.door.warn.Warn(r.log, "the guest's device waits for the next worker", "reason", err)
	})
	front := begin(relay)
	r.mu.Lock()
	r.now = relay
	r.attach()
	r.mu.Unlock()
	err := vhostuser.Serve(conn, front, nil)
	r.mu.Lock()
	r.now = nil
	r.mu.Unlock()
	relay.Detach()
	return err
}

// Attach makes connect the way to the worker, for this QEMU and those to come.
func (r *relayDoor) Attach(connect func() (*net.UnixConn, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.connect = connect
	r.attach()
}

// attach joins QEMU and worker if both are there.
func (r *relayDoor) attach() {
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
func (r *relayDoor) Detach() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.connect = nil
	if r.now != nil {
		r.now.Detach()
	}
}

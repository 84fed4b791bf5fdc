package qemu

import (
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// relayDoor connects the QEMU of one device with the worker that runs the device's rings. Either
// may exit and be replaced while the other stays.
type relayDoor struct {
	log  *slog.Logger
	door *turnstile

	mu      sync.Mutex
	connect func() (*net.UnixConn, error) // connects to the worker; nil: no worker
	now     *vhostuser.Relay              // of the connected QEMU; nil: no QEMU
}

// workerLimit is how long a worker may take to answer a request of QEMU. It has to wait until the
// NIC no longer uses the guest's memory.
const workerLimit = 30 * time.Second

// open starts to accept QEMUs. For each it calls begin, which returns the device that serves QEMU's
// messages: the relay itself, or a device around it.
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

// Attach sets the function that connects to the worker, for the connected QEMU and later ones.
func (r *relayDoor) Attach(connect func() (*net.UnixConn, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.connect = connect
	r.attach()
}

// attach connects QEMU's relay to the worker if both are present.
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

// Detach records that the worker is gone.
func (r *relayDoor) Detach() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.connect = nil
	if r.now != nil {
		r.now.Detach()
	}
}

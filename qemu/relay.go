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

	"github.com/falcon-vnic/vnic/qemu/vhostnet"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
	"github.com/falcon-vnic/vnic/qemu/virtqueue"
	"github.com/falcon-vnic/vnic/qemu/vsock"
)

// VhostRelay is the part of a vhost-user device that talks to the guest's QEMU. A worker, another
// process with a VhostUser or a NetPort, runs the rings, and may exit and be replaced while QEMU
// stays. The QEMU of a vsock device must not notice that, because it does not reconnect.
//
//	QEMU ──unix socket──► VhostRelay ──Connect──► NewVhostUser, NewNetPort (worker)
//
// The next worker continues a split ring at its used index and a packed ring where the ledger says.
type VhostRelay struct {
	// Ledger is the memory in which the worker records what the next one has to know: the guest's
	// flows of a vsock device (MapLedger), the positions of a port's packed rings (MapRings).
	Ledger *os.File

	server *server
	rings  ringLedger // the mapped Ledger of a port

	mu      sync.Mutex
	connect func() (*net.UnixConn, error) // connects to the worker; nil: no worker
	now     *vhostuser.Relay              // of the connected QEMU; nil: no QEMU
}

// workerLimit is how long a worker may take to answer a request of QEMU. It has to wait until the
// NIC no longer uses the guest's memory. A worker that takes longer is not tried again: what it waits
// for are its event loops, and the supervisor replaces a worker whose loops stand still for much less
// (nic.watchdog).
const workerLimit = 30 * time.Second

// ListenVhostRelay is like ListenVhostUser, but leaves the rings to a worker.
func ListenVhostRelay(path string, cid uint32, opt VhostOptions) (*VhostRelay, error) {
	if err := checkCID(path, cid); err != nil {
		return nil, err
	}
	sock, err := listenUnixSocket(path)
	if err != nil {
		return nil, fmt.Errorf("vhost-user: %w", err)
	}
	r := &VhostRelay{}
	if r.Ledger, err = newShared("vnic-flows", vsock.LedgerSize); err != nil {
		return nil, errors.Join(fmt.Errorf("vhost-user: %w", err), sock.Close())
	}
	r.start(sock, opt.logger().With("socket", path, "guest_cid", cid), vhostuser.Relayed{
		Layout: vhostuser.VsockLayout, Features: vhostFeatures,
		Config: func(off uint32, b []byte) bool { return vsock.Config(cid, off, b) },
		Anew:   r.forgetFlows,
	})
	return r, nil
}

// NewNetRelay relays a function's port. It serves the front ends that in accepts, and owns in.
func NewNetRelay(in Acceptor, name string, queuePairs, mtu int, opt VhostOptions) (*VhostRelay, error) {
	r := &VhostRelay{}
	size := vhostnet.LedgerBytes(queuePairs)
	var err error
	if r.Ledger, err = newShared("vnic-rings", int64(size)); err == nil {
		if r.rings, err = mapRings(r.Ledger, size); err != nil {
			err = errors.Join(err, r.Ledger.Close())
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("port %s: %w", name, err), in.Close())
	}
	r.start(in, opt.logger().With("port", name), vhostuser.Relayed{
		Layout: vhostnet.Layout(queuePairs), Features: vhostnet.Features(queuePairs), Ledger: r.rings,
		CheckMTU: func(told uint64) error { return vhostnet.CheckMTU(told, mtu) },
	})
	return r, nil
}

// start starts to accept QEMUs.
func (r *VhostRelay) start(in Acceptor, log *slog.Logger, dev vhostuser.Relayed) {
	r.server = newServer(in, log, func(conn *net.UnixConn) error { return r.serve(conn, dev) })
	r.server.start()
}

func (r *VhostRelay) serve(conn *net.UnixConn, dev vhostuser.Relayed) error {
	relay := vhostuser.NewRelay(dev, workerLimit, func(err error) {
		r.server.log.Warn("the guest's device waits for the next worker", "reason", err)
	})
	if dev.Anew != nil {
		dev.Anew() // an earlier QEMU's driver is gone
	}
	r.mu.Lock()
	r.now = relay
	r.attach()
	r.mu.Unlock()
	err := vhostuser.Serve(conn, relay, nil)
	r.mu.Lock()
	r.now = nil
	r.mu.Unlock()
	relay.Detach()
	return err
}

// Attach sets the function that connects to the worker, for the connected QEMU and later ones.
func (r *VhostRelay) Attach(connect func() (*net.UnixConn, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.connect = connect
	r.attach()
}

// attach connects QEMU's relay to the worker if both are present.
func (r *VhostRelay) attach() {
	if r.now == nil || r.connect == nil {
		return
	}
	conn, err := r.connect()
	if err == nil {
		err = r.now.Attach(conn)
	}
	if err != nil {
		r.server.log.Warn("the guest's device is not with the worker", "reason", err)
	}
}

// Detach records that the worker is gone.
func (r *VhostRelay) Detach() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.connect = nil
	if r.now != nil {
		r.now.Detach()
	}
}

// Close disconnects QEMU and closes what accepted it.
func (r *VhostRelay) Close() error {
	err := r.server.close()
	if r.rings != nil {
		err = errors.Join(err, unix.Munmap(r.rings))
	}
	return errors.Join(err, r.Ledger.Close())
}

// forgetFlows clears the ledger of flows when another driver starts: it has none of them, and may use
// the same ports.
func (r *VhostRelay) forgetFlows() {
	if _, err := r.Ledger.WriteAt(make([]byte, vsock.LedgerSize), 0); err != nil {
		r.server.log.Warn("flows not forgotten", "error", err)
	}
}

// ringLedger is the ledger of all rings of a port.
type ringLedger []byte

var _ vhostuser.Ledger = ringLedger{}

func (l ringLedger) of(ring int) virtqueue.Ledger {
	return virtqueue.Ledger(l[ring*virtqueue.LedgerSize:][:virtqueue.LedgerSize])
}

// Begin implements vhostuser.Ledger.
func (l ringLedger) Begin(ring int, base uint32) { l.of(ring).Begin(base) }

// Base implements vhostuser.Ledger.
func (l ringLedger) Base(ring int) uint32 { return l.of(ring).Base() }

// newShared creates a sealed memfd that a supervisor shares with its workers.
func newShared(name string, size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// MapLedger maps the ledger of a vsock device's relay in its worker, for the life of the process. f
// is a copy of the relay's descriptor; MapLedger closes it.
func MapLedger(f *os.File) (*vsock.Ledger, error) {
	defer f.Close()
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("ledger of flows: the memory has seals %#x (%v), want F_SEAL_SHRINK", seals, err)
	}
	if st, err := f.Stat(); err != nil || st.Size() < vsock.LedgerSize {
		return nil, fmt.Errorf("ledger of flows: not %d bytes of memory (%v)", vsock.LedgerSize, err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, vsock.LedgerSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("ledger of flows: mmap: %w", err)
	}
	return vsock.NewLedger(mem), nil
}

// MapRings maps a port's ledger in its worker, for the life of the process. It closes f.
func MapRings(f *os.File, queuePairs int) ([]byte, error) {
	defer f.Close()
	size := vhostnet.LedgerBytes(queuePairs)
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("ledger of rings: %w", err)
	}
	if st.Size() < int64(size) {
		return nil, fmt.Errorf("ledger of rings: %d bytes, want %d", st.Size(), size)
	}
	return mapRings(f, size)
}

func mapRings(f *os.File, size int) ([]byte, error) {
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("ledger of rings: mmap: %w", err)
	}
	return mem, nil
}

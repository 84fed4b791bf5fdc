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
	// Ledger is for the worker to note the guest's flows in (MapLedger).
	Ledger *os.File

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
	ledger, err := newLedger()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("vhost-user: %w", err), sock.Close())
	}
	r := &VhostRelay{cid: cid, Ledger: ledger, log: opt.logger().With("socket", path, "guest_cid", cid)}
	r.door = newTurnstile(sock, r.log, r.serve)
	r.door.open()
	return r, nil
}

func (r *VhostRelay) serve(conn *net.UnixConn) {
	dev := vhostuser.Relayed{
		Layout: vhostuser.VsockLayout, Features: vhostFeatures, Resume: vhostuser.ResumeSplit,
		Config: func(off uint32, b []byte) bool { return vsock.Config(r.cid, off, b) },
	}
	relay := vhostuser.NewRelay(dev, workerLimit, func(err error) {
		r.door.warn.Warn(r.log, "the guest's device waits for the next worker", "reason", err)
	})
	r.forgetFlows()
	r.mu.Lock()
	r.now = relay
	r.attach()
	r.mu.Unlock()
	err := vhostuser.Serve(conn, relayDevice{relay, r.forgetFlows})
	r.mu.Lock()
	r.now = nil
	r.mu.Unlock()
	relay.Detach()
	if err != nil && !r.door.closing() {
		r.door.warn.Warn(r.log, "QEMU disconnected", "reason", err)
	}
}

// relayDevice forgets the guest's flows with its rings: a driver that begins anew
// may use the same ports.
type relayDevice struct {
	*vhostuser.Relay
	forget func()
}

func (d relayDevice) StopVring(i int) uint32 {
	base := d.Relay.StopVring(i)
	d.forget()
	return base
}

func (r *VhostRelay) forgetFlows() {
	if _, err := r.Ledger.WriteAt(make([]byte, vsock.LedgerSize), 0); err != nil {
		r.log.Warn("flows not forgotten", "error", err)
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
func (r *VhostRelay) Close() error { return errors.Join(r.door.close(), r.Ledger.Close()) }

func newLedger() (*os.File, error) {
	fd, err := unix.MemfdCreate("vnic-flows", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "vnic-flows")
	if err := f.Truncate(vsock.LedgerSize); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// MapLedger makes a worker's ledger of a copy of a relay's, for as long as the
// process lives. It consumes f.
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

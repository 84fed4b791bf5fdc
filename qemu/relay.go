package qemu

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/vhostuser"
	"github.com/falcon-vnic/vnic/qemu/vsock"
)

// VhostRelay is the part of a guest's vsock device that talks to the guest's QEMU. A worker,
// another process with a VhostUser, runs the rings, and may exit and be replaced while QEMU stays.
// QEMU must not notice that, because it does not reconnect.
//
//	QEMU ──unix socket──► VhostRelay ──Connect──► ServeVhostUser (worker)
type VhostRelay struct {
	relayDoor
	// Ledger is the memory in which the worker records the guest's flows (MapLedger).
	Ledger *os.File
}

// ListenVhostRelay is like ListenVhostUser, but leaves the rings to a worker.
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
	r := &VhostRelay{Ledger: ledger}
	dev := vhostuser.Relayed{
		Layout: vhostuser.VsockLayout, Features: vhostFeatures,
		Config: func(off uint32, b []byte) bool { return vsock.Config(cid, off, b) },
	}
	r.open(sock, opt.logger().With("socket", path, "guest_cid", cid), dev, func(relay *vhostuser.Relay) vhostuser.Device {
		r.forgetFlows()
		return relayDevice{relay, r.forgetFlows}
	})
	return r, nil
}

// relayDevice clears the ledger of flows when a ring is stopped: a driver that starts again may use
// the same ports.
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

// Close disconnects QEMU and removes the socket file.
func (r *VhostRelay) Close() error { return errors.Join(r.door.close(), r.Ledger.Close()) }

func newLedger() (*os.File, error) { return newShared("vnic-flows", vsock.LedgerSize) }

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

// MapLedger maps a relay's ledger in its worker, for the life of the process. f is a copy of the
// relay's descriptor; MapLedger closes it.
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

package qemu

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/vhostnet"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
	"github.com/falcon-vnic/vnic/qemu/virtqueue"
)

// NetRelay is the part of a function's vhost-user port that talks to the guest's QEMU. A worker,
// another process with a NetPort, runs the rings, and may exit and be replaced. The next worker
// continues a split ring at its used index and a packed ring where the ledger says.
type NetRelay struct {
	relayDoor
	Ledger *os.File // the worker records the positions of packed rings here (MapRings)

	mem []byte // the mapped ledger
}

// NewNetRelay serves the front ends that in accepts. It owns in and closes it.
func NewNetRelay(in Acceptor, name string, queuePairs, mtu int, opt VhostOptions) (*NetRelay, error) {
	r := &NetRelay{}
	var err error
	if r.Ledger, r.mem, err = newRings(queuePairs); err != nil {
		return nil, errors.Join(fmt.Errorf("port %s: %w", name, err), in.Close())
	}
	dev := vhostuser.Relayed{Layout: vhostnet.Layout(queuePairs), Features: vhostnet.Features(queuePairs), Ledger: ringLedger(r.mem)}
	r.open(in, opt.logger().With("port", name), dev, func(relay *vhostuser.Relay) vhostuser.Device { return netRelayDevice{relay, mtu} })
	return r, nil
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

// Close disconnects the front end.
func (r *NetRelay) Close() error {
	return errors.Join(r.door.close(), unix.Munmap(r.mem), r.Ledger.Close())
}

// netRelayDevice is a relay that also checks the MTU.
type netRelayDevice struct {
	*vhostuser.Relay
	mtu int
}

// SetMTU implements vhostuser.MTUTaker.
func (d netRelayDevice) SetMTU(told uint64) error { return vhostnet.CheckMTU(told, d.mtu) }

// newRings creates and maps the ledger of a port.
func newRings(queuePairs int) (*os.File, []byte, error) {
	size := vhostnet.LedgerBytes(queuePairs)
	f, err := newShared("vnic-rings", int64(size))
	if err != nil {
		return nil, nil, err
	}
	mem, err := mapRings(f, size)
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, mem, nil
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

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

// NetRelay is a function's port in a guest's memory as the guest's QEMU sees it, without the rings:
// those are run by a worker, another process with a NetPort, which may go and be replaced. Rings
// then go on where they stand: split ones at their used index, packed ones by the ledger.
type NetRelay struct {
	relayDoor
	Ledger *os.File // where the worker notes how packed rings stand (MapRings)

	mem []byte // of the ledger
}

// NewNetRelay serves front ends that come from in, which it closes.
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

// ringLedger is the ledger of a port's rings.
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

// netRelayDevice knows the MTU, too.
type netRelayDevice struct {
	*vhostuser.Relay
	mtu int
}

// SetMTU implements vhostuser.MTUTaker.
func (d netRelayDevice) SetMTU(told uint64) error { return vhostnet.CheckMTU(told, d.mtu) }

// newRings makes the ledger of a port, and maps it.
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

// MapRings maps the ledger of a port in its worker, for as long as the process lives. It consumes
// f.
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

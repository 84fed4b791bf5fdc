package qemu

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/vhostnet"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
	"github.com/falcon-vnic/vnic/qemu/virtqueue"
	"github.com/falcon-vnic/vnic/queues"
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
	dev := vhostuser.Relayed{
		Layout: vhostnet.Layout(queuePairs), Features: vhostnet.Features(queuePairs),
		Begin: func(ring int, base uint32) { r.ring(ring).Begin(base) },
		Resume: func(mem []queues.Region, ring vhostuser.StoppedRing) (uint32, bool) {
			if ring.Packed {
				return r.ring(ring.Index).Resume(mem, ring.Desc, ring.Num)
			}
			return vhostuser.ResumeSplit(mem, ring)
		},
	}
	r.open(in, opt.logger().With("port", name), dev, func(relay *vhostuser.Relay) vhostuser.Device { return netRelayDevice{relay, mtu} })
	return r, nil
}

// ring is the part of the ledger that a ring has.
func (r *NetRelay) ring(i int) virtqueue.Ledger {
	return virtqueue.Ledger(r.mem[i*virtqueue.LedgerSize:][:virtqueue.LedgerSize])
}

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

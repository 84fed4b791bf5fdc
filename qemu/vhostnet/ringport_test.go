package vhostnet_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/vhostnet"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// Features of the device, Virtio §5.1.3 and §6.
const (
	guestCsum = 1 << 1
	guestTSO4 = 1 << 7
	guestTSO6 = 1 << 8
	guestECN  = 1 << 9
	merge     = 1 << 15
	indirect  = 1 << 28
	guestUSO4 = 1 << 54
	guestUSO6 = 1 << 55
)

// ringPort is a port without a conversation, whose rings the test drives as the guest's driver.
type ringPort struct {
	*vhostnet.Port
	t     *testing.T
	st    *vhostuser.State
	mem   []byte
	rings []*vhosttest.Queue // receive and transmit in turn
	next  uint64             // free memory
}

// newRingPort runs pairs of rings of a size.
func newRingPort(t *testing.T, features uint64, pairs int, size uint16) *ringPort {
	t.Helper()
	p, err := vhostnet.New(vhostnet.Config{Name: "test", MTU: 1500, Queues: pairs, Post: func(f func()) bool { f(); return true }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	d := &ringPort{Port: p, t: t, mem: make([]byte, 4<<20), next: 1 << 20}
	d.st = &vhostuser.State{
		Features: features, Regions: []vhostuser.Region{{Size: uint64(len(d.mem))}},
		Vrings: make([]vhostuser.Vring, 2*pairs),
	}
	at := uint64(0)
	for i := range d.st.Vrings {
		q := vhosttest.NewQueue(d.mem, vhosttest.QueueConfig{At: at, Size: size, Indirect: features&indirect != 0})
		at += vhosttest.QueueBytes(size)
		desc, driver, device := q.Parts()
		d.st.Vrings[i] = vhostuser.Vring{Num: size, Desc: desc, Avail: driver, Used: device}
		d.rings = append(d.rings, q)
	}
	if err := p.SetMemory(d.st, []*vhostuser.Mapping{{Region: d.st.Regions[0], Mem: d.mem}}); err != nil {
		t.Fatal(err)
	}
	for i := range d.rings {
		d.start(i)
	}
	return d
}

func (d *ringPort) start(i int) {
	d.t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = unix.Close(fd) })
	if err := d.StartVring(d.st, i, fd, -1, -1); err != nil {
		d.t.Fatal(err)
	}
}

// add makes a chain available in a ring, of buffers with these lengths one after the other in
// memory. It returns where the chain begins, and whether the device wants a kick.
func (d *ringPort) add(i int, write bool, lengths ...int) (mem []byte, kick bool) {
	d.t.Helper()
	var bufs []vhosttest.Buffer
	begin := d.next
	for _, n := range lengths {
		bufs = append(bufs, vhosttest.Buffer{Addr: d.next, Len: uint32(n), Write: write})
		d.next += uint64(n)
	}
	if _, ok := d.rings[i].Add(bufs...); !ok {
		d.t.Fatal("no room in the ring")
	}
	return d.mem[begin:d.next], d.rings[i].Show()
}

// used returns the lengths of the completed buffers of a ring.
func (d *ringPort) used(i int) (lengths []int) {
	for {
		_, n, ok := d.rings[i].Used()
		if !ok {
			return lengths
		}
		lengths = append(lengths, int(n))
	}
}

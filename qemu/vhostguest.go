package qemu

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/vhostuser"
	"github.com/falcon-vnic/vnic/qemu/vring"
	"github.com/falcon-vnic/vnic/qemu/vsock"
	"github.com/falcon-vnic/vnic/queues"
)

// vhostGuest is the device of one QEMU. It connects the protocol (vhostuser), the rings and flows
// (vsock.Device) and the watchers of the guest's memory.
type vhostGuest struct {
	dev     *vsock.Device
	ram     *ram
	regions queues.Regions
	// isWindow recognizes the NIC's own windows, which QEMU announces with the guest's memory.
	isWindow func(dev, ino uint64) bool
	kicks    [2]*kickReader // by ring
}

// vhostFeatures are the virtio features of the device.
const vhostFeatures = vhostuser.FeatureVersion1

func (g *vhostGuest) Layout() vhostuser.Layout { return vhostuser.VsockLayout }

func (g *vhostGuest) Features() uint64 { return vhostFeatures }

func (g *vhostGuest) Config(off uint32, b []byte) bool { return g.dev.Config(off, b) }

func (g *vhostGuest) SetMemory(st *vhostuser.State, maps []*vhostuser.Mapping) error {
	regions := make([]queues.Region, 0, len(maps))
	for _, m := range maps {
		if g.isWindow(m.Dev, m.Ino) {
			continue // never a target of DMA
		}
		regions = append(regions, queues.Region{Addr: m.GPA, Mem: m.Mem})
	}
	g.regions = queues.NewRegions(regions)
	err := g.dev.Rebind(func(i int, q *vring.Queue) error {
		cfg, err := ringConfig(st, i)
		if err != nil {
			return err
		}
		return q.Rebind(g.memory(), cfg)
	})
	g.ram.set(g.regions)
	return err
}

// memory returns the guest's memory for one ring: a queues.Memory has one owner,
// and the two rings are used under different locks.
func (g *vhostGuest) memory() *queues.Memory {
	var m queues.Memory
	m.Use(g.regions)
	return &m
}

func ringConfig(st *vhostuser.State, i int) (vring.Config, error) {
	desc, avail, used, err := st.RingGPA(i)
	r := &st.Vrings[i]
	return vring.Config{Size: r.Num, Desc: desc, Avail: avail, Used: used, Base: uint16(r.Base)}, err
}

// StartVring starts a ring. If the driver placed the ring wrongly, the ring does not start, but the
// connection stays: QEMU does not reconnect, so closing it would cost the guest its device for
// good.
func (g *vhostGuest) StartVring(st *vhostuser.State, i int, kick, call, errfd int) error {
	cfg, err := ringConfig(st, i)
	if err != nil {
		return err
	}
	begin := vring.New
	if st.Vrings[i].NoBase {
		begin = vring.Resume
	}
	q, err := begin(g.memory(), cfg)
	if errors.Is(err, vring.ErrQueue) {
		g.dev.Refuse(i, err, errfd)
		return nil
	}
	if err != nil {
		return err
	}
	k, err := newKickReader(kick, func() { g.dev.Kick(i) })
	if err != nil {
		return err
	}
	g.dev.Start(i, q, call, errfd)
	g.kicks[i] = k
	go k.run()
	return nil
}

func (g *vhostGuest) SetCall(i, call, errfd int) { g.dev.SetCall(i, call, errfd) }

func (g *vhostGuest) StopVring(i int) (base uint32) {
	base = uint32(g.dev.Stop(i))
	if k := g.kicks[i]; k != nil {
		k.stop()
		g.kicks[i] = nil
	}
	return base
}

// kickReader calls f for each notification of an eventfd. It never reads the eventfd: QEMU may make
// it blocking, and then a read could not be interrupted. Reading is not needed, since the runtime's
// poller reports each write to the eventfd, whatever its counter is.
type kickReader struct {
	file *os.File
	raw  syscall.RawConn
	f    func()
	done chan struct{}
}

func newKickReader(fd int, f func()) (*kickReader, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("kick descriptor: %w", err)
	}
	if err := unix.SetNonblock(own, true); err != nil { // the runtime polls only nonblocking descriptors
		return nil, errors.Join(fmt.Errorf("kick descriptor: %w", err), unix.Close(own))
	}
	k := &kickReader{file: os.NewFile(uintptr(own), "kick"), f: f, done: make(chan struct{})}
	if err := k.file.SetReadDeadline(time.Time{}); err != nil {
		return nil, errors.Join(fmt.Errorf("kick descriptor cannot be polled: %w", err), k.file.Close())
	}
	if k.raw, err = k.file.SyscallConn(); err != nil {
		return nil, errors.Join(fmt.Errorf("kick descriptor: %w", err), k.file.Close())
	}
	return k, nil
}

func (k *kickReader) run() {
	defer close(k.done)
	_ = k.raw.Read(func(uintptr) (done bool) { // called at once, then for each event
		k.f()
		return false
	})
}

func (k *kickReader) stop() {
	_ = k.file.Close()
	<-k.done
}

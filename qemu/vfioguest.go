package qemu

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/falcon-vnic/vnic/internal/loglimit"
	"github.com/falcon-vnic/vnic/qemu/eventfd"
	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/qemu/vfiouser"
	"github.com/falcon-vnic/vnic/queues"
)

// vfioGuest holds what a QEMU gives to one function: memory, and eventfds that interrupt the guest.
// A worker serves it to the process that is connected to QEMU (VfioRelay) as a device with one
// register, relayRegister.
type vfioGuest struct {
	v       *VfioUser
	number  uint32
	win     *ivshmem.Window
	control *ivshmem.Control
	server  *server
	log     loglimit.Log
	here    presence
	sending bool // the relay has more to send; of the goroutine that serves it

	mu   sync.Mutex
	ram  *ram // of the current or last QEMU; each QEMU has its own, so no session sees a later one's
	dma  dmaMap
	seen queues.Regions // the part of dma that the function may access
}

var _ vfiouser.Device = (*vfioGuest)(nil)

// serve serves a QEMU, or the relay in front of it, until it disconnects.
func (g *vfioGuest) serve(conn *net.UnixConn, dev vfiouser.Device) error {
	g.mu.Lock()
	g.ram = &ram{}
	g.mu.Unlock()
	g.sending = false
	if dev != vfiouser.Device(g) { // without a relay, QEMU starts the guest's processors only after it has mapped memory
		g.here.begin()
	}
	err := vfiouser.Serve(conn, dev)
	g.here.end()
	g.control.Reset() // its driver is gone
	return err
}

func (g *vfioGuest) close() error {
	err := g.server.close()
	g.control.Close()
	return errors.Join(err, g.win.Close())
}

// received records that something of what QEMU gave has come. Drivers may come then, unless the
// relay has said that it has more to send; one of an earlier version does not say so.
func (g *vfioGuest) received() {
	if !g.sending {
		g.here.begin()
	}
}

// Map implements vfioBack.
func (g *vfioGuest) Map(m vfiouser.Map, file int) error {
	defer g.received()
	if err := checkMemory(m, file); err != nil {
		g.log.Warn("memory of the guest is out of the function's reach", "reason", err)
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	r, err := g.dma.add(m, file)
	if err == nil {
		if err = g.grant(r); err != nil {
			g.dma.release(g.dma.remove(m.Range)...)
		}
	}
	if err != nil {
		g.log.Warn("memory of the guest is out of the function's reach", "reason", err)
	}
	return err
}

// grant makes a range accessible to the function, if it may be a target of DMA, and tells the
// sessions.
func (g *vfioGuest) grant(r *dmaRange) error {
	if !g.isTarget(r) {
		return nil
	}
	region, err := g.dma.region(r)
	if err == nil {
		g.announce(g.seen.With(region))
	}
	return err
}

// isTarget reports whether a range may be a target of DMA: it has a file, which is no window.
func (g *vfioGuest) isTarget(r *dmaRange) bool {
	return r.file != nil && !g.v.isWindow(r.file.dev, r.file.ino)
}

// revokeWindows revokes the function's access to ranges that are windows by now.
func (g *vfioGuest) revokeWindows() {
	g.mu.Lock()
	defer g.mu.Unlock()
	seen := g.seen
	for i := range g.dma.ranges {
		if r := &g.dma.ranges[i]; r.file != nil && !g.isTarget(r) {
			seen = seen.Without(r.Addr, r.Size)
		}
	}
	g.announce(seen)
}

// Unmap implements vfioBack. It returns when nothing uses the memory any more. It tells the
// sessions once, however many mapped ranges r covers.
func (g *vfioGuest) Unmap(r vfiouser.Range) {
	g.mu.Lock()
	defer g.mu.Unlock()
	gone := g.dma.remove(r)
	if len(gone) == 0 {
		return
	}
	g.announce(g.seen.Without(r.Addr, r.Size))
	g.dma.release(gone...)
}

// announce tells the sessions which memory the function may access.
func (g *vfioGuest) announce(seen queues.Regions) {
	g.seen = seen
	g.ram.set(seen)
}

// SetIRQs implements vfioBack. It raises an interrupt on each new eventfd, because one may have
// been lost before.
func (g *vfioGuest) SetIRQs(_, start uint32, fds []int) error {
	if err := checkEventfds(fds); err != nil {
		return err
	}
	defer closeFDs(fds)
	defer g.received()
	for i, fd := range fds {
		at := int(start) + i
		if err := g.win.Signal(at, fd); err != nil {
			return err
		}
		if fd != eventfd.None {
			g.win.Interrupt(at)
		}
	}
	return nil
}

// Trigger implements vfioBack.
func (g *vfioGuest) Trigger(_, vector uint32) { g.win.Interrupt(int(vector)) }

// Reset implements vfioBack. It ends the driver's session, as if the driver had left.
func (g *vfioGuest) Reset() { g.control.Reset() }

// Vectors implements vfiouser.Device. A VfioRelay uses MSI-X here, whatever the function has.
func (g *vfioGuest) Vectors(irq uint32) uint32 {
	if irq != vfiouser.IRQMSIX {
		return 0
	}
	return ivshmem.Vectors
}

// Region implements vfiouser.Device: a relay has the function's regions itself.
func (g *vfioGuest) Region(index uint32) (vfiouser.RegionInfo, int) {
	if index != relayRegister {
		return vfiouser.RegionInfo{}, vfiouser.NoFile
	}
	return vfiouser.RegionInfo{Flags: vfiouser.RegionWritable, Size: 1}, vfiouser.NoFile
}

// Read implements vfiouser.Device.
func (g *vfioGuest) Read(_ uint32, _ uint64, b []byte) { clear(b) }

// Write implements vfiouser.Device: the relay begins to send what QEMU gave before, or has sent it.
func (g *vfioGuest) Write(_ uint32, _ uint64, b []byte) {
	if len(b) == 1 {
		g.sending = b[0] == relaySending
		g.received()
	}
}

// session returns the session of a driver. The driver of a PCI device can use only that function.
func (g *vfioGuest) session(conn net.Conn) queues.Session {
	g.mu.Lock()
	defer g.mu.Unlock()
	return &windowSession{conn, queues.Identity{Transport: "vfio-user", CID: g.v.cid}, g.ram, g.number, g.bell}
}

func (g *vfioGuest) bell(function uint32) (queues.Bell, error) {
	if function != g.number {
		return nil, fmt.Errorf("the window is that of function %#x, not of %#x", g.number, function)
	}
	return g.win.Listen()
}

package qemu

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"

	"github.com/falcon-vnic/vnic/internal/loglimit"
	"github.com/falcon-vnic/vnic/qemu/eventfd"
	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/qemu/vfiouser"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// VfioUser serves the functions of one guest to its QEMU as PCI devices, by vfio-user, each over
// its own unix socket. The guest's drivers need nothing else to reach the NIC.
//
// Each function serves one QEMU at a time. When that QEMU exits, the function's session ends, and
// the next QEMU may connect to the same socket.
type VfioUser struct {
	name string // of the attachment, for messages
	cid  uint32 // number of the guest
	log  *slog.Logger
	mem  *guestmem.Budget

	mu        sync.Mutex
	functions map[uint32]*vfioGuest
	closed    bool
	sessions  chan queues.Session
	done      chan struct{} // closed by Close
	accepting sync.WaitGroup
}

// NewVfioUser returns a guest without functions. The configuration assigns functions to its number,
// cid.
func NewVfioUser(name string, cid uint32, opt VhostOptions) *VfioUser {
	return &VfioUser{
		name: name, cid: cid, log: opt.logger().With("guest", cid), mem: opt.memory("guest " + name), functions: map[uint32]*vfioGuest{},
		sessions: make(chan queues.Session), done: make(chan struct{}),
	}
}

// AddFunction serves a function to QEMU on a unix socket at path. It must be called before QEMU
// starts, or before the function is plugged into a running QEMU.
func (v *VfioUser) AddFunction(number uint32, kind abi.FunctionType, path string, look VfioPCI) error {
	win, err := ivshmem.NewWindow(number, kind)
	if err != nil {
		return err
	}
	g := v.newGuest(number, win, nil)
	fn, err := newVfioFunction(number, win, look, g)
	if err != nil {
		return errors.Join(err, win.Close())
	}
	sock, err := listenUnixSocket(path)
	if err != nil {
		return errors.Join(err, win.Close())
	}
	return v.add(g, sock, func() vfiouser.Device {
		fn.space.Reset()
		return fn
	})
}

// UseFunction serves a function whose QEMU is connected to another process (a VfioRelay). in
// accepts connections from that process. UseFunction owns in and win; both are closed in the end.
// known is like VhostOptions.Known, for this function.
func (v *VfioUser) UseFunction(number uint32, win *ivshmem.Window, in Acceptor, known <-chan struct{}) error {
	g := v.newGuest(number, win, known)
	return v.add(g, in, func() vfiouser.Device { return g })
}

// HasFunction reports whether a function of the guest is served.
func (v *VfioUser) HasFunction(number uint32) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.functions[number] != nil
}

func (v *VfioUser) newGuest(number uint32, win *ivshmem.Window, known <-chan struct{}) *vfioGuest {
	g := &vfioGuest{v: v, number: number, win: win, log: loglimit.Log{To: v.log.With("function", fmt.Sprintf("%#x", number))}, ram: &ram{}, here: newPresence(known), dma: dmaMap{budget: v.mem}}
	for i := range ivshmem.Vectors {
		_ = win.Signal(i, eventfd.None)
	}
	return g
}

// add begins to serve a function. device returns the device for each QEMU that connects.
func (v *VfioUser) add(g *vfioGuest, in Acceptor, device func() vfiouser.Device) error {
	others, err := v.enter(g, in, device)
	for _, o := range others {
		o.revokeWindows() // its QEMU may have mapped the new function's window, which DMA must not access
	}
	return err
}

// enter is add, except that it leaves the earlier functions alone and returns them.
func (v *VfioUser) enter(g *vfioGuest, in Acceptor, device func() vfiouser.Device) (others []*vfioGuest, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed || v.functions[g.number] != nil {
		err = fmt.Errorf("function %#x is served already, or the attachment is closed", g.number)
	} else {
		g.control, err = g.win.Control(v.name)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("vfio-user %s: %w", v.name, err), in.Close(), g.win.Close())
	}
	others = slices.Collect(maps.Values(v.functions))
	g.server = newServer(in, g.log.To, func(conn *net.UnixConn) error { return g.serve(conn, device()) })
	g.server.start()
	v.functions[g.number] = g
	v.accepting.Go(func() { v.accept(g) })
	return others, nil
}

// accept passes a function's sessions on to Accept.
func (v *VfioUser) accept(g *vfioGuest) {
	for {
		conn, err := g.control.Accept()
		if err != nil {
			return
		}
		if !g.here.await(v.done) {
			_ = conn.Close()
			continue
		}
		select {
		case v.sessions <- g.session(conn):
		case <-v.done:
			_ = conn.Close()
		}
	}
}

// Accept implements queues.Attachment.
func (v *VfioUser) Accept() (queues.Session, error) {
	select {
	case s := <-v.sessions:
		return s, nil
	case <-v.done:
		return nil, net.ErrClosed
	}
}

// Addr implements queues.Attachment.
func (v *VfioUser) Addr() string { return "vfio-user:" + v.name }

// Close disconnects all QEMUs and waits until no memory of the guest is mapped. A session that was
// accepted keeps its window until it ends. The guest keeps running without its functions.
func (v *VfioUser) Close() error {
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return nil
	}
	v.closed = true
	close(v.done)
	v.mu.Unlock()
	var errs []error
	for _, g := range v.functions { // closed: no function is added any more
		errs = append(errs, g.close())
	}
	v.accepting.Wait()
	return errors.Join(errs...)
}

// vfioGuest holds what a QEMU gives to one function: memory, and eventfds that interrupt the guest.
// A worker serves it to the process that is connected to QEMU (VfioRelay) as a device without
// regions.
type vfioGuest struct {
	v       *VfioUser
	number  uint32
	win     *ivshmem.Window
	control *ivshmem.Control
	server  *server
	log     loglimit.Log
	here    presence

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
	g.here.begin()
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

// Map implements vfioBack.
func (g *vfioGuest) Map(m vfiouser.Map, file int) error {
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

// isWindow reports whether a file is a window of the guest. QEMU may map a window as memory for
// other devices.
func (v *VfioUser) isWindow(dev, ino uint64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, g := range v.functions {
		if g.win.Is(dev, ino) {
			return true
		}
	}
	return false
}

// SetIRQs implements vfioBack. It raises an interrupt on each new eventfd, because one may have
// been lost before.
func (g *vfioGuest) SetIRQs(_, start uint32, fds []int) error {
	if err := checkEventfds(fds); err != nil {
		return err
	}
	defer closeFDs(fds)
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

// Region implements vfiouser.Device: a relay has all regions itself.
func (g *vfioGuest) Region(uint32) (vfiouser.RegionInfo, int) {
	return vfiouser.RegionInfo{}, vfiouser.NoFile
}

// Read implements vfiouser.Device.
func (g *vfioGuest) Read(_ uint32, _ uint64, b []byte) { clear(b) }

// Write implements vfiouser.Device.
func (g *vfioGuest) Write(uint32, uint64, []byte) {}

// session returns the session of a driver. The driver of a PCI device can use only that function.
func (g *vfioGuest) session(conn net.Conn) queues.Session {
	g.mu.Lock()
	defer g.mu.Unlock()
	return &windowSession{conn, queues.Peer{Transport: "vfio-user", CID: g.v.cid}, g.ram, g.number, g.bell}
}

func (g *vfioGuest) bell(function uint32) (queues.Bell, error) {
	if function != g.number {
		return nil, fmt.Errorf("the window is that of function %#x, not of %#x", g.number, function)
	}
	return g.win.Listen()
}

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

// A function by vfio-user, from QEMU inwards:
//
//	QEMU ── socket ──▶ vfioFunction  vfiofunction.go  PCI: configuration space, BARs, bell, window
//	                      │ vfioBack: memory, interrupts, resets
//	   in one process     ├──▶ vfioGuest  vfioguest.go, vfiodma.go  memory, eventfds, the driver's session
//	   with a worker      └──▶ VfioRelay  vfiorelay.go ── socket ──▶ vfioGuest of the worker
//
// VfioUser serves the functions of a guest, and gives their drivers' sessions to the NIC.

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

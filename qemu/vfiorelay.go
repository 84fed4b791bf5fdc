package qemu

import (
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/internal/loglimit"
	"github.com/falcon-vnic/vnic/qemu/eventfd"
	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/qemu/vfiouser"
)

// VfioRelay is the part of a vfio-user function that talks to QEMU. A worker, another process with
// a VfioUser, drives the function, and may exit and be replaced while QEMU stays. QEMU does not
// reconnect, and its guest stands still until each request is answered.
//
//	QEMU ── unix socket ──► VfioRelay: configuration space, bell
//	                          ├── Connect ──► VfioUser (worker): memory, eventfds, resets
//	                          └── the window, which both processes share
type VfioRelay struct {
	Window *ivshmem.Window // for the worker too

	fn     *vfioFunction
	log    loglimit.Log
	server *server

	mu      sync.Mutex
	connect func() (*net.UnixConn, error) // connects to the worker; nil: no worker
	here    bool                          // a QEMU is connected
	back    *vfiouser.Client              // connection to the worker for this QEMU; nil: none
	retry   *time.Timer                   // connects to the worker again; nil: not needed
	pause   time.Duration                 // before that
	dma     dmaMap
	irqs    [ivshmem.Vectors]int // QEMU's eventfds; eventfd.None: none
}

const (
	// vfioLimit is how long a worker may take to answer: the guest stands still meanwhile, and QEMU
	// itself waits 5 s for an answer.
	vfioLimit = time.Second
	// vfioResetLimit is how long a reset waits for the worker. A driver does not use a function for
	// 100 ms after it has reset it (PCI Express 4.0 §6.6.2), so a reset that takes longer than this
	// limit can still finish in time.
	vfioResetLimit = 50 * time.Millisecond

	// A worker that did not answer in time, on a busy machine, is connected to again after a pause,
	// which doubles each time.
	vfioFirstPause = time.Second
	vfioLastPause  = 16 * time.Second
)

// A relay tells its worker by a register that it sends what QEMU gave before, and that it has sent
// it. Until then the worker lets no driver in, which might use memory that is still to come.
const (
	relayRegister = 0 // index of a region of one byte

	relaySending = 0 // more follows
	relaySent    = 1
)

// ServeVfioRelay serves a function to one QEMU at a time, on a unix socket at path:
//
//	-device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"PATH"}}'
//
// The relay owns the window and closes it, also when ServeVfioRelay fails.
func ServeVfioRelay(number uint32, win *ivshmem.Window, path string, look VfioPCI, opt VhostOptions) (*VfioRelay, error) {
	r := &VfioRelay{Window: win, log: loglimit.Log{To: opt.logger().With("socket", path)}}
	for i := range r.irqs {
		r.irqs[i] = eventfd.None
	}
	var err error
	if r.fn, err = newVfioFunction(number, win, look, r); err != nil {
		return nil, errors.Join(err, win.Close())
	}
	sock, err := listenUnixSocket(path)
	if err != nil {
		return nil, errors.Join(err, win.Close())
	}
	r.server = newServer(sock, r.log.To, r.serve)
	r.server.start()
	return r, nil
}

func (r *VfioRelay) serve(conn *net.UnixConn) error {
	r.fn.space.Reset()
	r.mu.Lock()
	r.here = true
	r.attach()
	r.mu.Unlock()
	err := vfiouser.Serve(conn, r.fn)
	r.mu.Lock()
	r.here = false
	r.disconnect()
	r.mu.Unlock()
	return err
}

// Attach sets the function that connects to the worker, for the connected QEMU and later ones.
func (r *VfioRelay) Attach(connect func() (*net.UnixConn, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.disconnect()
	r.connect, r.pause = connect, 0
	r.attach()
}

// Detach records that the worker is gone.
func (r *VfioRelay) Detach() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.connect = nil
	r.disconnect()
}

// Close disconnects QEMU and removes the socket file.
func (r *VfioRelay) Close() error { return errors.Join(r.server.close(), r.Window.Close()) }

// attach connects to the worker if QEMU and worker are present.
func (r *VfioRelay) attach() {
	if !r.here || r.connect == nil {
		return
	}
	if err := r.sendAll(); err != nil {
		r.tryLater(err)
		return
	}
	r.pause = 0
}

// tryLater drops the connection to a worker that failed or did not answer in time, and connects to
// it again after a pause.
func (r *VfioRelay) tryLater(reason error) {
	r.disconnect()
	r.pause = min(max(2*r.pause, vfioFirstPause), vfioLastPause)
	var retry *time.Timer
	retry = time.AfterFunc(r.pause, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.retry == retry {
			r.retry = nil
			r.attach()
		}
	})
	r.retry = retry
	r.log.Warn("the function is without a worker", "reason", reason, "next_attempt", r.pause)
}

// sendAll connects to the worker and sends it all memory and eventfds. Drivers may come after that.
func (r *VfioRelay) sendAll() error {
	conn, err := r.connect()
	if err != nil {
		return err
	}
	if r.back, err = vfiouser.NewClient(conn, vfioLimit); err != nil {
		return err
	}
	if err := r.say(relaySending); err != nil {
		return err
	}
	for i := range r.dma.ranges {
		if err := r.sendRange(&r.dma.ranges[i]); err != nil {
			return err
		}
	}
	for i, fd := range r.irqs {
		if fd != eventfd.None {
			if err := r.back.SetIRQs(vfiouser.IRQMSIX, uint32(i), 1, fd); err != nil {
				return err
			}
		}
	}
	return r.say(relaySent)
}

// say writes the worker's relayRegister. A worker of an earlier version has none, and refuses that.
func (r *VfioRelay) say(what byte) error {
	err := r.back.Write(relayRegister, 0, []byte{what}, false)
	if _, refused := err.(unix.Errno); refused {
		return nil
	}
	return err
}

func (r *VfioRelay) sendRange(m *dmaRange) error {
	if m.file == nil {
		return nil
	}
	return r.back.Map(m.Map, m.file.fd)
}

// disconnect ends the connection to the worker, and attempts to make one.
func (r *VfioRelay) disconnect() {
	if r.retry != nil {
		r.retry.Stop()
		r.retry = nil
	}
	if r.back != nil {
		_ = r.back.Close()
		r.back = nil
	}
}

// forward calls do with the connection to the worker, if there is one. It returns the worker's
// refusal. If the worker fails in another way or does not answer in time, forward drops the
// connection; on the next connection it is sent everything again.
func (r *VfioRelay) forward(do func(*vfiouser.Client) error) (refused error) {
	if r.back == nil {
		return nil
	}
	err := do(r.back)
	if _, ok := err.(unix.Errno); ok { // a wrapped Errno is an error of the connection
		r.log.Warn("the worker refuses something of the function's, and has logged why", "error", err)
		return err
	}
	if err != nil {
		r.tryLater(err)
	}
	return nil
}

// Map implements vfioBack.
func (r *VfioRelay) Map(m vfiouser.Map, file int) error {
	if err := checkMemory(m, file); err != nil {
		r.log.Warn("memory of the guest is out of the function's reach", "reason", err)
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	added, err := r.dma.add(m, file)
	if err != nil {
		r.log.Warn("memory of the guest is out of the function's reach", "reason", err)
		return err
	}
	if err = r.forward(func(*vfiouser.Client) error { return r.sendRange(added) }); err != nil {
		r.dma.release(r.dma.remove(m.Range)...)
	}
	return err
}

// Unmap implements vfioBack.
func (r *VfioRelay) Unmap(m vfiouser.Range) {
	r.mu.Lock()
	defer r.mu.Unlock()
	gone := r.dma.remove(m)
	if len(gone) == 0 {
		return
	}
	_ = r.forward(func(c *vfiouser.Client) error { return c.Unmap(m) })
	r.dma.release(gone...)
}

// SetIRQs implements vfioBack.
func (r *VfioRelay) SetIRQs(_, start uint32, fds []int) error {
	if err := checkEventfds(fds); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, fd := range fds {
		at := int(start) + i
		old := r.irqs[at]
		r.irqs[at] = fd
		switch {
		case fd != eventfd.None:
			_ = r.forward(func(c *vfiouser.Client) error { return c.SetIRQs(vfiouser.IRQMSIX, uint32(at), 1, fd) })
		case old != eventfd.None:
			_ = r.forward(func(c *vfiouser.Client) error { return c.SetIRQs(vfiouser.IRQMSIX, uint32(at), 1) })
		}
		if old != eventfd.None {
			_ = unix.Close(old)
		}
	}
	return nil
}

// checkEventfds returns an error, after it has closed all descriptors, if one is no eventfd. Like
// checkMemory it must be called before a lock is taken.
func checkEventfds(fds []int) (err error) {
	for _, fd := range fds {
		if fd != eventfd.None {
			err = errors.Join(err, eventfd.Check(fd))
		}
	}
	if err != nil {
		closeFDs(fds)
	}
	return err
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		if fd != eventfd.None {
			_ = unix.Close(fd)
		}
	}
}

// Trigger implements vfioBack.
func (r *VfioRelay) Trigger(_, vector uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := vfiouser.IRQSet{Flags: vfiouser.IRQDataNone | vfiouser.IRQTrigger, Index: vfiouser.IRQMSIX, Start: vector, Count: 1}
	_ = r.forward(func(c *vfiouser.Client) error {
		_, err := c.Call(vfiouser.SetIRQs, q.Append(nil))
		return err
	})
}

// Reset implements vfioBack. It waits for the worker for vfioResetLimit at most; the reset then
// goes on in the background.
func (r *VfioRelay) Reset() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.mu.Lock()
		defer r.mu.Unlock()
		_ = r.forward((*vfiouser.Client).Reset)
	}()
	select {
	case <-done:
	case <-time.After(vfioResetLimit):
	}
}

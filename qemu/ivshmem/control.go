package ivshmem

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/queues/control"
)

// Control serves the control block of a window, by which drivers open sessions without a vsock
// connection.
type Control struct {
	win  *Window
	l    *control.Listener
	bell *os.File
	raw  syscall.RawConn // of bell
	wg   sync.WaitGroup
}

// Control begins to serve the window's control block. The name is used in messages.
func (w *Window) Control(name string) (*Control, error) {
	if err := w.hold(); err != nil {
		return nil, fmt.Errorf("control block: %w", err)
	}
	c := &Control{win: w}
	err := c.start(name)
	if err != nil {
		w.drop()
		return nil, fmt.Errorf("control block: %w", err)
	}
	c.wg.Go(c.watchBell)
	return c, nil
}

func (c *Control) start(name string) error {
	own, err := unix.FcntlInt(uintptr(c.win.bell[1]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.SetNonblock(own, true); err != nil { // the runtime polls only nonblocking descriptors
		return errors.Join(err, unix.Close(own))
	}
	c.bell = os.NewFile(uintptr(own), "bell")
	if c.raw, err = c.bell.SyscallConn(); err != nil {
		return errors.Join(err, c.bell.Close())
	}
	c.l, err = control.Listen(control.Config{
		Block: c.win.mem[controlOffset:][:control.Size], Name: name,
		Interrupt: func() { c.win.Interrupt(0) }, Clear: c.win.clear,
	})
	if err != nil {
		return errors.Join(err, c.bell.Close())
	}
	return nil
}

// clear zeroes the rings and queues of the window, before a session begins.
func (w *Window) clear() {
	clear(w.bells())
	for i := range eventQueues {
		clear(w.events(i))
	}
	clear(w.adminSQ())
	clear(w.adminCQ())
}

// watchBell waits for the driver's doorbell and looks at the control block each time. It never
// reads the eventfd, because QEMU may make it blocking. Reading is not needed, since the runtime's
// poller reports each write to the eventfd, whatever its counter is.
func (c *Control) watchBell() {
	_ = c.raw.Read(func(uintptr) (done bool) { // called at once, then for each event, until closed
		c.l.Look()
		return false
	})
}

// Accept waits for the next driver and returns its session, which keeps the window open until it is
// closed. After Close, Accept returns net.ErrClosed.
func (c *Control) Accept() (net.Conn, error) {
	conn, err := c.l.Accept()
	if err != nil {
		return nil, err
	}
	if err := c.win.hold(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &heldConn{Conn: conn, win: c.win}, nil
}

// Reset ends the driver's session, as a reset by the driver does.
func (c *Control) Reset() { c.l.Reset() }

// Close stops serving the control block: no further driver is accepted.
func (c *Control) Close() {
	c.l.Close()
	_ = c.bell.Close()
	c.wg.Wait()
	c.win.drop()
}

// heldConn is a session that keeps its window open.
type heldConn struct {
	*control.Conn
	win  *Window
	once sync.Once
}

func (c *heldConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.win.drop)
	return err
}

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

// Control serves the control block of a window: drivers' sessions without a stream of bytes.
type Control struct {
	win  *Window
	l    *control.Listener
	bell *os.File
	raw  syscall.RawConn // of bell
	wg   sync.WaitGroup
}

// Control begins to serve the window's control block. A name is for messages.
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
	c.wg.Go(c.hear)
	return c, nil
}

func (c *Control) start(name string) error {
	own, err := unix.FcntlInt(uintptr(c.win.bell[1]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.SetNonblock(own, true); err != nil { // the runtime polls no other
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

// clear empties what a session begins with.
func (w *Window) clear() {
	clear(w.bells())
	for i := range eventQueues {
		clear(w.events(i))
	}
	clear(w.adminSQ())
	clear(w.adminCQ())
}

// hear waits for the driver's bell. It never reads the eventfd: QEMU may have made it blocking.
// Each write to it is an event of its own for the runtime's poller, whatever the counter was.
func (c *Control) hear() {
	_ = c.raw.Read(func(uintptr) (done bool) { // called at once, then for each event, until closed
		c.l.Look()
		return false
	})
}

// Accept waits for the next driver. Its session keeps the window until it is closed. After Close it
// returns net.ErrClosed.
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

// Reset ends the driver's session, as the driver may do itself.
func (c *Control) Reset() { c.l.Reset() }

// Close accepts no further drivers.
func (c *Control) Close() {
	c.l.Close()
	_ = c.bell.Close()
	c.wg.Wait()
	c.win.drop()
}

// heldConn is a session that keeps its window.
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

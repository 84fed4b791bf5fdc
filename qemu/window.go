package qemu

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// WindowServer serves the ivshmem device of one function to one QEMU at a time:
//
//	-chardev socket,id=w,path=PATH -device ivshmem-doorbell,chardev=w,vectors=5
type WindowServer struct {
	Window *ivshmem.Window
	server *server
}

// ListenWindow creates the window of a function and serves it on a unix socket at path. It must be
// called before QEMU starts.
func ListenWindow(function uint32, kind abi.FunctionType, path string, opt VhostOptions) (*WindowServer, error) {
	win, err := ivshmem.NewWindow(function, kind)
	if err != nil {
		return nil, err
	}
	return ServeWindow(win, path, opt)
}

// ServeWindow is like ListenWindow for an existing window. It owns the window and closes it, also
// when it fails.
func ServeWindow(win *ivshmem.Window, path string, opt VhostOptions) (*WindowServer, error) {
	sock, err := listenUnixSocket(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ivshmem: %w", err), win.Close())
	}
	s := &WindowServer{Window: win}
	s.server = newServer(sock, opt.logger().With("socket", path), s.serve)
	s.server.start()
	return s, nil
}

func (s *WindowServer) serve(conn *net.UnixConn) error {
	_ = conn.SetWriteDeadline(time.Now().Add(handover))
	if err := s.Window.Introduce(conn); err != nil {
		return fmt.Errorf("it did not take its window: %w", err)
	}
	_, _ = io.Copy(io.Discard, conn) // QEMU sends nothing; this returns when it disconnects
	return nil
}

// Close disconnects QEMU and releases the window as soon as nothing listens on it.
func (s *WindowServer) Close() error { return errors.Join(s.server.close(), s.Window.Close()) }

// guestWindow is a window of the guest with the server of its control block.
type guestWindow struct {
	win     *ivshmem.Window
	close   func() error
	control *ivshmem.Control
}

// end ends the driver's session and releases the window as soon as nothing uses it.
func (w *guestWindow) end() error {
	w.control.Reset()
	w.control.Close()
	return w.close()
}

// AddWindow gives one of the guest's functions a window, which QEMU gets from a unix socket at
// path; see ListenWindow. It must be called before QEMU starts, or before PlugWindow.
func (v *VhostUser) AddWindow(function uint32, kind abi.FunctionType, path string) error {
	s, err := ListenWindow(function, kind, path, VhostOptions{Log: v.log})
	if err != nil {
		return err
	}
	return v.addWindow(function, &guestWindow{win: s.Window, close: s.Close})
}

// UseWindow gives one of the guest's functions a window that another process serves to QEMU. v owns
// the window and closes it, also when UseWindow fails.
func (v *VhostUser) UseWindow(function uint32, win *ivshmem.Window) error {
	return v.addWindow(function, &guestWindow{win: win, close: win.Close})
}

func (v *VhostUser) addWindow(function uint32, w *guestWindow) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	var err error
	switch {
	case v.closed || v.windows[function] != nil:
		err = fmt.Errorf("function %#x has a window, or the device is closed", function)
	case len(v.windows) >= MaxWindows:
		err = fmt.Errorf("guest %d has %d windows, its PCI bus has room for no more", v.cid, MaxWindows)
	}
	if err == nil {
		w.control, err = w.win.Control(fmt.Sprintf("window of function %#x", function))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("ivshmem %s: %w", v.path, err), w.close())
	}
	v.accepting.Go(func() { v.accept(function, w.control) })
	if v.windows == nil {
		v.windows = make(map[uint32]*guestWindow)
	}
	v.windows[function] = w
	return nil
}

// HasWindow reports whether a function of the guest has a window.
func (v *VhostUser) HasWindow(function uint32) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.windows[function] != nil
}

// isWindow reports whether a file is one of the NIC's own windows. A window is mapped into the
// guest's address space but is not guest memory.
func (v *VhostUser) isWindow(dev, ino uint64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.windows {
		if s.win.Is(dev, ino) {
			return true
		}
	}
	return false
}

// accept passes the sessions that a function's driver opens on to vhostPort.Accept.
func (v *VhostUser) accept(function uint32, from *ivshmem.Control) {
	for {
		c, err := from.Accept()
		if err != nil {
			return
		}
		if !v.here.await(v.done) {
			_ = c.Close()
			continue
		}
		v.mu.Lock()
		s := &windowSession{c, v.peer(), v.ram, function, v.bell}
		v.mu.Unlock()
		select {
		case v.opened <- s:
		case <-v.done:
			_ = c.Close()
		}
	}
}

// hangUp ends all sessions by windows, after their QEMU has disconnected.
func (v *VhostUser) hangUp() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, w := range v.windows {
		w.control.Reset()
	}
}

func (v *VhostUser) bell(function uint32) (queues.Bell, error) {
	v.mu.Lock()
	w := v.windows[function]
	v.mu.Unlock()
	if w == nil {
		return nil, nil
	}
	return w.win.Listen()
}

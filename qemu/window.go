package qemu

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// windowServer serves the ivshmem device of one function to one QEMU at a time.
type windowServer struct {
	v    *VhostUser
	win  *ivshmem.Window
	sock *unixSocket
	wg   sync.WaitGroup

	mu     sync.Mutex
	conn   *net.UnixConn
	idle   chan struct{} // closed when none is served
	closed bool
}

// AddWindow gives one of the guest's functions a window, which QEMU gets from a
// unix socket at path:
//
//	-chardev socket,id=w,path=PATH -device ivshmem-doorbell,chardev=w,vectors=4
//
// It must be called before QEMU starts, or is told of the window by PlugWindow.
func (v *VhostUser) AddWindow(function uint32, kind abi.FunctionType, path string) error {
	sock, err := listenUnixSocket(path)
	if err != nil {
		return fmt.Errorf("ivshmem: %w", err)
	}
	win, err := ivshmem.NewWindow(function, kind)
	if err != nil {
		return errors.Join(err, sock.Close())
	}
	idle := make(chan struct{})
	close(idle)
	s := &windowServer{v: v, win: win, sock: sock, idle: idle}
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.closed || v.windows[function] != nil:
		err = fmt.Errorf("function %#x has a window, or the device is closed", function)
	case len(v.windows) >= MaxWindows:
		err = fmt.Errorf("guest %d has %d windows, its PCI bus has room for no more", v.cid, MaxWindows)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("ivshmem %s: %w", path, err), sock.Close(), win.Close())
	}
	if v.windows == nil {
		v.windows = make(map[uint32]*windowServer)
	}
	v.windows[function] = s
	s.wg.Go(s.acceptLoop)
	return nil
}

// HasWindow tells whether a function of the guest has a window.
func (v *VhostUser) HasWindow(function uint32) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.windows[function] != nil
}

func (s *windowServer) acceptLoop() {
	for {
		conn, err := s.sock.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors: give others time to return some
			s.v.warn.Warn(s.v.log, "cannot accept QEMU", "socket", s.sock.path, "error", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		s.serve(conn)
	}
}

func (s *windowServer) serve(conn *net.UnixConn) {
	s.mu.Lock()
	idle := s.idle
	s.mu.Unlock()
	select {
	case <-idle:
	case <-time.After(handover):
		s.v.warn.Warn(s.v.log, "another QEMU uses this socket already; each guest needs its own", "socket", s.sock.path)
		conn.Close()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.Close()
		return
	}
	idle = make(chan struct{})
	s.conn, s.idle = conn, idle
	s.wg.Go(func() {
		defer close(idle)
		defer conn.Close()
		_ = conn.SetWriteDeadline(time.Now().Add(handover))
		if err := s.win.Introduce(conn); err != nil {
			s.v.warn.Warn(s.v.log, "QEMU left before it had its window", "socket", s.sock.path, "reason", err)
			return
		}
		_, _ = io.Copy(io.Discard, conn) // QEMU sends nothing; its end is the end
	})
}

func (s *windowServer) close() error {
	err := s.sock.Close()
	s.mu.Lock()
	s.closed = true
	if s.conn != nil {
		s.conn.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return errors.Join(err, s.win.Close())
}

// isWindow reports whether a file is one of our own windows, which is mapped in
// the guest's address space but no memory of the guest's.
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

// Bell implements queues.Ringer.
func (s *vhostSession) Bell(function uint32) (queues.Bell, error) {
	s.v.mu.Lock()
	w := s.v.windows[function]
	s.v.mu.Unlock()
	if w == nil {
		return nil, nil
	}
	return w.win.Listen()
}

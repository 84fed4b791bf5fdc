package tap

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/songgao/water"
	"golang.org/x/sys/unix"
)

// openWater opens a TAP with the songgao/water library: plain frames.
//
// The library leaks a descriptor whenever opening fails, so a probe of our own must succeed first.
// It does not set close-on-exec; ForkLock prevents the runtime from forking until we have set it.
// It clears persistence unless told otherwise, which would remove an adopted device on Close.
func openWater(cfg Config) (opened, error) {
	if cfg.Queues > 1 {
		return opened{}, fmt.Errorf("backend %q has one queue: use %q for %d", BackendWater, BackendNative, cfg.Queues)
	}
	const kind = unix.IFF_TAP | unix.IFF_NO_PI
	probe, err := attach(cfg.Name, kind, cfg.Adopt)
	if err != nil {
		return opened{}, err
	}
	if err := unix.Close(probe); err != nil {
		return opened{}, os.NewSyscallError("close", err)
	}
	wc := water.Config{DeviceType: water.TAP}
	wc.Name, wc.Persist = cfg.Name, cfg.Adopt

	syscall.ForkLock.RLock()
	ifce, err := water.New(wc)
	fd := -1
	if err == nil {
		fd, err = descriptor(ifce)
	}
	if err == nil {
		unix.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err == nil {
		err = verify(fd, cfg.Name, kind)
	}
	if err != nil {
		if ifce != nil {
			err = errors.Join(err, ifce.Close())
		}
		return opened{}, fmt.Errorf("water: %w", err)
	}
	return opened{fds: []int{fd}, close: ifce.Close}, nil
}

// descriptor returns the library's descriptor, which stays open as long as the interface does.
// (os.File's Fd would make it blocking.)
func descriptor(ifce *water.Interface) (fd int, err error) {
	conn, ok := ifce.ReadWriteCloser.(syscall.Conn)
	if !ok {
		return -1, errors.New("the library hides its descriptor")
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return -1, err
	}
	err = raw.Control(func(f uintptr) { fd = int(f) })
	return fd, err
}

package tap

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const tunDevice = "/dev/net/tun"

// kindFlags are the flags that define the kind of a device; the kernel sets others too.
const kindFlags = unix.IFF_TUN | unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE

// nativeKind is the kind of the native backend's devices, and of functions' ports.
const nativeKind = unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR

func (c *Config) nativeKind() uint16 {
	if c.Queues > 1 {
		return nativeKind | unix.IFF_MULTI_QUEUE
	}
	return nativeKind
}

// openNative opens a TAP with virtio-net headers, and with superframes if they are requested and
// the kernel supports them.
func openNative(cfg Config) (opened, error) {
	fds := cfg.kept
	shut := func() (err error) {
		for _, fd := range fds {
			err = errors.Join(err, unix.Close(fd))
		}
		return err
	}
	for i := len(fds); i < max(cfg.Queues, 1); i++ {
		fd, err := attach(cfg.Name, cfg.nativeKind(), cfg.Adopt || i > 0)
		if cfg.Adopt && errors.Is(err, unix.EINVAL) {
			err = fmt.Errorf("%w (an interface made with multi_queue takes 2 queues or more, any other 1)", err)
		}
		if err != nil {
			return opened{}, errors.Join(err, shut())
		}
		fds = append(fds, fd)
	}
	// The following settings belong to the device, not to the queue.
	if err := unix.IoctlSetPointerInt(fds[0], unix.TUNSETVNETHDRSZ, vnetHeaderLen); err != nil {
		return opened{}, errors.Join(os.NewSyscallError("TUNSETVNETHDRSZ", err), shut())
	}
	segments, err := negotiate(fds[0], cfg.Superframes)
	if err != nil {
		return opened{}, errors.Join(err, shut())
	}
	return opened{fds: fds, header: vnetHeaderLen, segments: segments, close: shut}, nil
}

// attach opens the TAP name with exactly the given kind flags. Without adopt the device must be
// new.
func attach(name string, kind uint16, adopt bool) (int, error) {
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: tunDevice, Err: err}
	}
	if err := setInterface(fd, name, kind, adopt); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

func setInterface(fd int, name string, kind uint16, adopt bool) error {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	flags := kind
	if !adopt {
		flags |= unix.IFF_TUN_EXCL
	}
	ifr.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return os.NewSyscallError("TUNSETIFF", err)
	}
	return verify(fd, name, kind)
}

// verify checks the result of TUNSETIFF: if the device is open elsewhere, the kernel ignores flags
// and reports success.
func verify(fd int, name string, kind uint16) error {
	ifr, err := unix.NewIfreq("")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, ifr); err != nil {
		return os.NewSyscallError("TUNGETIFF", err)
	}
	if got := ifr.Uint16() & kindFlags; ifr.Name() != name || got != kind {
		return fmt.Errorf("the kernel gave device %q with flags %#x instead of %#x (is it open elsewhere?)", ifr.Name(), got, kind)
	}
	return nil
}

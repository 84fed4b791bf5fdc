package tap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/songgao/water"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Backends of Open.
const (
	BackendNative = "native"
	BackendWater  = "water"
)

// Config describes the TAP to open.
type Config struct {
	Name    string // interface name, 1..15 bytes
	MTU     int    // bytes; 0 leaves the kernel's default (1500)
	Bridge  string // bridge to enslave the interface to; "" for none
	Backend string // BackendNative (also "") or BackendWater
	Adopt   bool   // use an existing persistent interface instead of making one
	Queues  int    // of the native backend; 0 and 1: one. An adopted interface takes several only if it was made with multi_queue, and then more than one

	// Superframes lets the native backend exchange superframes with the kernel, if the kernel
	// supports them (Linux 6.2 and newer). Other hosts on the fabric need not support them: the
	// kernel cuts superframes up.
	Superframes bool

	Keeper Keeper // of native devices; nil: none
	kept   []int  // descriptors of the queues, if the device was kept
}

// opened is the result of a backend: open, non-blocking descriptors of a TAP.
type opened struct {
	fds      []int // one per queue
	header   int   // bytes of virtio-net header in front of each frame
	segments int   // datagrams that the kernel accepts in one superframe; 1 or less: no superframes
	close    func() error
}

var backends = map[string]func(Config) (opened, error){
	"":            openNative,
	BackendNative: openNative,
	BackendWater:  openWater,
}

// Open creates (or adopts) the TAP, sets its MTU, joins it to the bridge and brings it up. Errors
// name the interface and the remedy. After an error nothing that Open created is left.
func Open(cfg Config) (Uplink, error) {
	p, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("tap %q: %w", cfg.Name, err)
	}
	return p, nil
}

func open(cfg Config) (_ *uplink, err error) {
	backend, ok := backends[cfg.Backend]
	switch {
	case !ok:
		return nil, fmt.Errorf("backend %q is unknown: use %q or %q", cfg.Backend, BackendNative, BackendWater)
	case cfg.Queues < 0 || cfg.Queues > MaxQueues:
		return nil, fmt.Errorf("%d queues: use 1 to %d", cfg.Queues, MaxQueues)
	case cfg.MTU != 0 && (cfg.MTU < minMTU || cfg.MTU > maxMTU):
		return nil, fmt.Errorf("MTU %d must be %d..%d, or 0 for the kernel's default", cfg.MTU, minMTU, maxMTU)
	}
	if err := checkName(cfg.Name); err != nil {
		return nil, err
	}
	if cfg.Backend != BackendWater {
		cfg.kept = takeKept(cfg.Keeper, cfg.Name, cfg.nativeKind(), max(cfg.Queues, 1))
	}
	if cfg.kept == nil {
		if err := checkExisting(cfg); err != nil {
			return nil, err
		}
	}
	dev, err := backend(cfg)
	if err != nil {
		return nil, explain(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dev.close())
		}
	}()
	mtu, err := setUp(cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Backend != BackendWater {
		if err := keep(cfg.Keeper, cfg.Name, dev.fds...); err != nil {
			return nil, err
		}
	}
	return newUplink(cfg.Name, mtu, dev)
}

const (
	minMTU = 68    // the kernel's own bounds for a TAP
	maxMTU = 65521 // 65535 less the Ethernet header
)

// checkName refuses names that the kernel or the backends would truncate, expand or reject.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("an interface needs a name of 1 to 15 characters")
	case len(name) >= unix.IFNAMSIZ:
		return fmt.Errorf("the name has %d characters, interfaces may have %d: choose a shorter one", len(name), unix.IFNAMSIZ-1)
	case name == "." || name == ".." || strings.ContainsAny(name, "/:% \t\n\v\f\r\x00"):
		return errors.New("an interface name may not contain '/', ':', '%' or white space: choose another")
	}
	return nil
}

// checkExisting compares an existing interface with the configuration, before any descriptor is
// opened.
func checkExisting(cfg Config) error {
	link, err := findLink(cfg.Name)
	switch {
	case err != nil:
		return err
	case link == nil && cfg.Adopt:
		return fmt.Errorf("there is no such interface to adopt: make it with 'ip tuntap add %s mode tap', or do not ask to adopt", cfg.Name)
	case link == nil:
		return nil
	case !cfg.Adopt:
		return fmt.Errorf("an interface of that name exists already (type %s): stop the vnic run that owns it, or remove it if nobody owns it ('ip link del %s'), or choose another name", link.Type(), cfg.Name)
	}
	t, ok := link.(*netlink.Tuntap)
	switch {
	case !ok || t.Mode != netlink.TUNTAP_MODE_TAP:
		return fmt.Errorf("the interface of that name is a %s, not a TAP: choose another name", link.Type())
	case cfg.Queues > 1 && t.Queues > 0: // the kernel would let two processes share the queues
		return explain(unix.EBUSY)
	}
	return nil
}

// explain adds the remedy to a kernel error.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w (opening a TAP needs root or CAP_NET_ADMIN)", err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return fmt.Errorf("%w (load the driver with 'modprobe tun')", err)
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w (another process uses the interface: stop it, or choose another name)", err)
	}
	return err
}

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

// Keeper keeps devices open beyond the process that made them.
type Keeper interface {
	// Take returns the descriptors of a kept device, one per queue. The caller owns them.
	Take(name string) (fds []int)
	// PutBack owns what Take returned and could not be used. It is as if nobody had taken it.
	PutBack(name string, fds ...int)
	// Keep keeps copies of an open device's descriptors.
	Keep(name string, fds ...int) error
	// Forget stops keeping a device. When it returns, no copy of the descriptors is left.
	Forget(name string) error
}

// takeKept returns the queues of a kept device if it has this kind and number of queues, else nil.
func takeKept(k Keeper, name string, kind uint16, queues int) []int {
	if k == nil {
		return nil
	}
	fds := k.Take(name)
	good := len(fds) == queues
	for _, fd := range fds {
		good = good && verify(fd, name, kind) == nil && unix.SetNonblock(fd, true) == nil
	}
	if good {
		return fds
	}
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	return nil
}

func keep(k Keeper, name string, fds ...int) error {
	if k == nil {
		return nil
	}
	return k.Keep(name, fds...)
}

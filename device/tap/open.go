package tap

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

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
func Open(cfg Config) (Port, error) {
	p, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("tap %q: %w", cfg.Name, err)
	}
	return p, nil
}

func open(cfg Config) (_ *port, err error) {
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
	return newPort(cfg.Name, mtu, dev)
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
		return fmt.Errorf("an interface of that name exists already (type %s): stop the vnic run whose it is, remove it if nobody's ('ip link del %s'), or choose another name", link.Type(), cfg.Name)
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

package tap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// retry repeats a netlink request whose dump was interrupted by a change elsewhere
// (NLM_F_DUMP_INTR): its result would be incomplete. The library reports that as an error and
// leaves the repetition to the caller.
func retry(request func() error) error {
	var err error
	for range 20 {
		if err = request(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return err
}

// findLink returns the link with a name, or nil when there is none.
func findLink(name string) (link netlink.Link, err error) {
	err = retry(func() error {
		link, err = netlink.LinkByName(name)
		return err
	})
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up interface %q: %w", name, err)
	}
	return link, nil
}

// setUp configures an open TAP's link and returns its MTU.
func setUp(cfg Config) (mtu int, err error) {
	link, err := findLink(cfg.Name)
	if err != nil {
		return 0, err
	}
	if link == nil {
		return 0, errors.New("the interface vanished while it was set up")
	}
	mtu = link.Attrs().MTU
	if cfg.MTU != 0 && cfg.MTU != mtu {
		if err := netlink.LinkSetMTU(link, cfg.MTU); err != nil {
			return 0, fmt.Errorf("set MTU %d: %w", cfg.MTU, err)
		}
		mtu = cfg.MTU
	}
	if !cfg.Adopt {
		if err := quiet(link); err != nil {
			return 0, err
		}
	}
	if cfg.Bridge != "" {
		if err := enslave(link, cfg.Bridge, mtu); err != nil {
			return 0, err
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return 0, fmt.Errorf("bring up: %w", err)
	}
	return mtu, nil
}

// findBridge returns the bridge with a name. Its error advises to create the bridge with the MTU of
// the TAPs that join it, because a bridge drops packets longer than its own MTU.
func findBridge(name string, mtu int) (netlink.Link, error) {
	br, err := findLink(name)
	if err != nil {
		return nil, err
	}
	if br == nil {
		return nil, fmt.Errorf("bridge %q does not exist in this network namespace: make it with 'ip link add %s mtu %d type bridge && ip link set %[2]s up'", name, name, mtu)
	}
	if _, ok := br.(*netlink.Bridge); !ok {
		return nil, fmt.Errorf("%q is a %s, not a bridge: name another", name, br.Type())
	}
	return br, nil
}

// CheckBridge returns an error unless a bridge of that name exists. mtu is for the advice in the
// error.
func CheckBridge(name string, mtu int) error {
	_, err := findBridge(name, mtu)
	return err
}

func enslave(link netlink.Link, bridge string, mtu int) error {
	br, err := findBridge(bridge, mtu)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetMaster(link, br); err != nil {
		return fmt.Errorf("join bridge %q: %w", bridge, err)
	}
	return nil
}

const addrGenModeNone = 1 // IN6_ADDR_GEN_MODE_NONE

// quiet prevents the kernel from sending its own IPv6 traffic over a link that we made: no
// link-local address, no router solicitations or duplicate address detection, no multicast reports.
func quiet(link netlink.Link) error {
	const conf = "/proc/sys/net/ipv6/conf"
	if _, err := os.Stat(conf); errors.Is(err, fs.ErrNotExist) {
		return nil // a kernel without IPv6
	}
	if err := netlink.LinkSetIP6AddrGenMode(link, addrGenModeNone); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("turn IPv6 address generation off: %w", err)
	}
	err := os.WriteFile(filepath.Join(conf, link.Attrs().Name, "disable_ipv6"), []byte("1"), 0)
	if err != nil && !errors.Is(err, unix.EROFS) && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("turn IPv6 off: %w", err)
	}
	return nil // if /proc/sys is read-only (containers), turning off address generation must suffice
}

// NewBridge creates a quiet bridge (no multicast snooping, no IPv6 traffic of its own) and brings
// it up. mtu is in bytes; 0 leaves the kernel's default.
func NewBridge(name string, mtu int) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("bridge %q: %w", name, err)
		}
	}()
	if err := checkName(name); err != nil {
		return err
	}
	snooping := false
	br := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs(), MulticastSnooping: &snooping}
	br.Name, br.MTU = name, mtu
	switch err := netlink.LinkAdd(br); {
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%w: choose another name, or remove it with 'ip link del %s'", err, name)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (making a bridge needs root or CAP_NET_ADMIN)", err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w (load the driver with 'modprobe bridge')", err)
	case err != nil:
		return err
	}
	err = quiet(br)
	if err == nil {
		err = netlink.LinkSetUp(br)
	}
	if err != nil {
		return errors.Join(err, netlink.LinkDel(br))
	}
	return nil
}

// OpenGuest creates a TAP for a guest's Ethernet interface, joins it to a bridge and brings it up.
// The file is for QEMU; the device disappears when it is no longer open.
func OpenGuest(name, bridge string, mtu int) (f *os.File, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("tap %q: %w", name, err)
		}
	}()
	if err := errors.Join(checkName(name), checkExisting(Config{Name: name})); err != nil {
		return nil, err
	}
	fd, err := attach(name, unix.IFF_TAP|unix.IFF_NO_PI|unix.IFF_VNET_HDR, false)
	if err != nil {
		return nil, explain(err)
	}
	if _, err = setUp(Config{Name: name, MTU: mtu, Bridge: bridge}); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Member is an interface that has joined a bridge.
type Member struct {
	Name    string
	MTU     int
	Carrier bool // it is up, and something is at its other end
}

// Members lists the interfaces in a bridge.
func Members(bridge string) (list []Member, err error) {
	br, err := findBridge(bridge, 0)
	if err != nil {
		return nil, err
	}
	var links []netlink.Link
	err = retry(func() error {
		links, err = netlink.LinkList()
		return err
	})
	for _, l := range links {
		if a := l.Attrs(); a.MasterIndex == br.Attrs().Index {
			list = append(list, Member{a.Name, a.MTU, a.RawFlags&unix.IFF_LOWER_UP != 0})
		}
	}
	return list, err
}

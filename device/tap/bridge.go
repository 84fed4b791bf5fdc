package tap

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

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

// DeleteBridge removes a bridge; its ports stay, without a bridge. It refuses an interface that is
// not a bridge.
func DeleteBridge(name string) error {
	link, err := findLink(name)
	if err != nil {
		return err
	}
	if link == nil {
		return fmt.Errorf("bridge %q: there is no such interface", name)
	}
	if _, ok := link.(*netlink.Bridge); !ok {
		return fmt.Errorf("bridge %q: the interface is a %s, not a bridge", name, link.Type())
	}
	if err := netlink.LinkDel(link); err != nil {
		return fmt.Errorf("bridge %q: delete: %w", name, err)
	}
	return nil
}

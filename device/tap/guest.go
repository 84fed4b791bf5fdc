package tap

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

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

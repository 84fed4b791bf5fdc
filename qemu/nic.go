package qemu

import (
	"errors"
	"fmt"
	"os"
)

// NIC is an Ethernet interface of a guest, a virtio-net device whose other end is
// a TAP of the host, or a NIC that serves its rings.
type NIC struct {
	TAP  *os.File // open, with a virtio-net header; QEMU inherits it
	Port *Port    // in place of the rest: what serves it, by a socket
	MAC  string   // of the guest's interface
	MTU  int      // told to the guest; 0: 1500
}

// firstNIC is the place of the first TAP among the files QEMU inherits, behind
// those of Start.
const firstNIC = 5

// args attach the i-th NIC that is a TAP, or one to a QEMU whose version is asked if it matters.
func (n NIC) args(i int, version func() Version, accel Accel) []string {
	if n.Port != nil {
		chardev, netdev, device := n.Port.guestPort(version(), accel)
		return []string{"-chardev", chardev, "-netdev", netdev, "-device", device + ",romfile="}
	}
	mtu := ""
	if n.MTU > 0 {
		mtu = fmt.Sprintf(",host_mtu=%d", n.MTU)
	}
	return []string{
		"-netdev", fmt.Sprintf("tap,id=net%d,fd=%d", i, firstNIC+i),
		"-device", fmt.Sprintf("virtio-net-pci,netdev=net%d,mac=%s,romfile=%s", i, n.MAC, mtu),
	}
}

func (n NIC) check() error {
	if n.Port == nil && (n.TAP == nil || n.MAC == "") {
		return errors.New("machine with a NIC without a TAP or a MAC: both are needed")
	}
	return nil
}

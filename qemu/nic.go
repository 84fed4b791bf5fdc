package qemu

import (
	"errors"
	"fmt"
	"os"
)

// NIC is an Ethernet interface of a guest: a virtio-net device whose other end is a TAP of the host
// or a software NIC that serves its rings.
type NIC struct {
	TAP  *os.File // open, with a virtio-net header; QEMU inherits it
	Port *Port    // with a Socket; replaces all other fields
	MAC  string   // of the guest's interface
	MTU  int      // shown to the guest; 0: 1500
}

// firstNIC is QEMU's descriptor number of the first TAP. It follows those that Start passes.
const firstNIC = 5

// args returns the arguments that attach a NIC. i is its index among the NICs that are TAPs.
// version returns QEMU's version; it is called only for a NIC with a Port.
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

package tap

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// offloads lists the sets of offloads to accept from the kernel, best first: superframes with an
// incomplete checksum; frames with an incomplete checksum (which saves the kernel summing what it
// cuts for us; PSP authenticates the payload anyway); plain frames. Linux accepts only both kinds
// of USO or none.
var offloads = []struct {
	bits int
	uso  bool
}{
	{unix.TUN_F_CSUM | unix.TUN_F_USO4 | unix.TUN_F_USO6, true},
	{unix.TUN_F_CSUM, false},
	{0, false},
}

// negotiate sets the offloads of a TAP. It returns the maximum number of datagrams in a superframe
// written to the device, 1 if superframes are off. In that case it turns every offload off: an
// adopted device may still have some that would give us packets larger than the MTU.
func negotiate(fd int, superframes bool) (segments int, err error) {
	ladder := offloads
	if !superframes {
		ladder = offloads[len(offloads)-1:]
	}
	for _, o := range ladder {
		err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, o.bits)
		if errors.Is(err, unix.EINVAL) && o.bits != 0 {
			continue // the kernel does not know one of the bits
		}
		if err != nil {
			return 0, os.NewSyscallError("TUNSETOFFLOAD", err)
		}
		if o.uso {
			return probe(fd)
		}
		return 1, nil
	}
	return 1, nil
}

// HasUSO asks the kernel, with a TAP that it makes and removes, whether TAPs carry superframes. It needs
// CAP_NET_ADMIN. The TAP is in the network namespace of the calling thread.
func HasUSO() (has bool, err error) {
	fd, err := attach("uso", unix.IFF_TAP|unix.IFF_NO_PI|unix.IFF_VNET_HDR, false)
	if err != nil {
		return false, err
	}
	segments, err := negotiate(fd, true)
	return segments > 1, errors.Join(err, unix.Close(fd))
}

// Limits of a superframe. Linux does not report its own limits.
const (
	maxSegments  = 128 // Linux 6.11 and newer
	sureSegments = 64  // every Linux that has USO
	maxPacket    = 65535
)

// probe determines how many datagrams a superframe may have. It writes to the device while the
// device is down: the kernel refuses a superframe with too many datagrams with EINVAL, and only
// then any other with EIO. So nothing is sent. An adopted device that is up is not probed.
func probe(fd int) (int, error) {
	ifr, err := unix.NewIfreq("")
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.TUNGETIFF, ifr)
	}
	if err != nil {
		return 0, os.NewSyscallError("TUNGETIFF", err)
	}
	if up, err := isUp(ifr.Name()); err != nil || up {
		return sureSegments, err
	}
	for _, n := range []int{maxSegments, sureSegments} {
		switch err := probeWrite(fd, n); {
		case errors.Is(err, unix.EIO):
			return n, nil
		case errors.Is(err, unix.EINVAL):
		case err == nil: // the link was brought up meanwhile: a PSP packet of zeros to no address was sent
			return n, nil
		default:
			return 0, os.NewSyscallError("write", err)
		}
	}
	return 1, nil
}

// probeWrite writes a superframe of n datagrams of 16 zero bytes.
func probeWrite(fd, n int) error {
	const each = 16
	frame := make([]byte, ethernetLen+ipv4Len+udpLen+each)
	ip := frame[ethernetLen:]
	frame[12], ip[0], ip[3], ip[9] = typeIPv4>>8, 0x45, byte(len(ip)), unix.IPPROTO_UDP
	frames := make([][]byte, n)
	for i := range frames {
		frames[i] = frame
	}
	v := newVector(n)
	r := v.gather(frames)
	if r.frames != n {
		return fmt.Errorf("a probe of %d datagrams was cut at %d", n, r.frames)
	}
	if errno := v.writeSuper(fd, r.headers, frames); errno != 0 {
		return errno
	}
	return nil
}

// isUp reports whether a link is administratively up.
func isUp(name string) (bool, error) {
	link, err := findLink(name)
	if err != nil || link == nil {
		return false, err
	}
	return link.Attrs().RawFlags&unix.IFF_UP != 0, nil
}

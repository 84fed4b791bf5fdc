package qemu

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"time"
)

// Version is a version of QEMU: 702 for 7.2. 0 means unknown and counts as older than any other,
// since an unknown QEMU may lack each newer feature.
type Version int

// MinVfioUser is the first version with vfio-user.
const MinVfioUser = Version(1001)

func (v Version) String() string {
	if v == 0 {
		return "not to be run here"
	}
	return fmt.Sprintf("%d.%d", int(v)/100, int(v)%100)
}

// Versions from which on QEMU behaves differently.
const (
	reconnectInMs = Version(902)  // reconnect-ms= in place of reconnect=
	vhostMSIX     = Version(1000) // under TCG, 7.2 exits when a guest's driver binds a vhost-user device with MSI-X; 10.0 does not; versions between were not tried
)

var versionLine = regexp.MustCompile(`(\d+)\.(\d+)`)

// parseVersion returns the first version number in text, or 0 if there is none.
func parseVersion(text string) Version {
	m := versionLine.FindStringSubmatch(text)
	if m == nil {
		return 0
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	return Version(100*major + minor)
}

// versionTime is the time limit of VersionOf.
const versionTime = 10 * time.Second

// VersionOf runs a QEMU program with --version and returns its version, or 0 if that fails.
func VersionOf(binary string) Version {
	ctx, cancel := context.WithTimeout(context.Background(), versionTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, "--version").Output()
	if err != nil {
		return 0
	}
	return parseVersion(string(out))
}

// reconnect returns the option that makes a socket's client connect again after a second.
func (v Version) reconnect() string {
	if v >= reconnectInMs {
		return "reconnect-ms=1000"
	}
	return "reconnect=1"
}

// guestPort returns the arguments of a Port with a Socket: of its chardev, netdev and device.
func (p Port) guestPort(v Version, accel Accel) (chardev, netdev, device string) {
	end := v.reconnect()
	if p.Server {
		end = "server=on,wait=off"
	}
	chardev = fmt.Sprintf("socket,id=%s-socket,path=%s,%s", p.id(), escape(p.Socket), end)
	netdev = fmt.Sprintf("vhost-user,id=%s,chardev=%[1]s-socket,queues=%d", p.id(), p.Queues)
	device = p.device()
	vectors := 2*p.Queues + 2
	if p.noMSIX(v, accel) {
		vectors = 0
	}
	switch {
	case p.Queues > 1:
		device += fmt.Sprintf(",mq=on,vectors=%d", vectors)
	case vectors == 0:
		device += ",vectors=0"
	}
	return chardev, netdev, device
}

// noMSIX reports whether the device must use an interrupt line instead of MSI-X.
func (p Port) noMSIX(v Version, accel Accel) bool {
	if accel == "" {
		accel = DetectAccel()
	}
	return accel == TCG && v < vhostMSIX
}

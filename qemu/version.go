package qemu

import (
	"bytes"
	"context"
	"fmt"
	"os"
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

// Accel is a QEMU accelerator.
type Accel string

// Accelerators.
const (
	KVM Accel = "kvm"
	TCG Accel = "tcg"
)

// DetectAccel returns KVM if the CPU has virtualization extensions and /dev/kvm can be opened, and
// TCG otherwise. It checks the CPU too because the device file also exists in containers and guests
// that cannot use it.
func DetectAccel() Accel { return detectAccel("/proc/cpuinfo", "/dev/kvm") }

func detectAccel(cpuinfo, device string) Accel {
	b, err := os.ReadFile(cpuinfo)
	if err != nil || !hasVirtualization(b) {
		return TCG
	}
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return TCG
	}
	f.Close()
	return KVM
}

func hasVirtualization(cpuinfo []byte) bool {
	for line := range bytes.Lines(cpuinfo) {
		if name, value, ok := bytes.Cut(line, []byte(":")); ok && string(bytes.TrimSpace(name)) == "flags" {
			for _, flag := range bytes.Fields(value) {
				if s := string(flag); s == "vmx" || s == "svm" {
					return true
				}
			}
		}
	}
	return false
}

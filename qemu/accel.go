package qemu

import (
	"bytes"
	"os"
	"strconv"
)

// Accel is a QEMU accelerator.
type Accel string

// Accelerators.
const (
	KVM Accel = "kvm"
	TCG Accel = "tcg"
)

// DetectAccel returns KVM if this machine can run guests with it: the CPU has
// virtualization extensions and /dev/kvm can be opened. The device file alone
// says nothing, as it exists in containers and guests too.
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

// smp is the argument of -smp. Where TCG emulates a machine that can have one CPU only, QEMU before
// 8.1 leaves out the guest's memory barriers. A NIC is another thread, and without them a doorbell
// gets lost now and then (DRV-604): so such a machine has room for a second CPU.
func smp(cpus int, accel Accel) string {
	if cpus <= 1 && accel == TCG {
		return "1,maxcpus=2"
	}
	return strconv.Itoa(max(cpus, 1))
}

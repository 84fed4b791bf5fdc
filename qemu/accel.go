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

// smp returns the argument of -smp. If a machine under TCG can have only one CPU, QEMU before 8.1
// omits the guest's memory barriers. The NIC runs on another thread, and without the barriers a
// doorbell is occasionally lost (DRV-604). Such a machine therefore gets room for a second CPU.
func smp(cpus int, accel Accel) string {
	if cpus <= 1 && accel == TCG {
		return "1,maxcpus=2"
	}
	return strconv.Itoa(max(cpus, 1))
}

package qemu

import (
	"bytes"
	"os"
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

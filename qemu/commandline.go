package qemu

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/falcon-vnic/vnic/qemu/guestinit"
)

// CommandLine describes the command line of a guest that the user starts: stock QEMU, 7.2 or newer
// (10.1 for vfio-user), with memory that the NIC can map and with the devices through which the
// guest reaches its functions.
type CommandLine struct {
	Binary   string  // QEMU's program, default qemu-system-x86_64
	Version  Version // of Binary (VersionOf)
	Name     string  // shown in process lists
	Memory   int64   // bytes, whole MiB
	CPUs     int
	Accel    Accel    // default: DetectAccel
	Vsock    string   // socket of a VhostUser
	Windows  []Window // of its functions
	Vfio     []Vfio   // vfio-user functions; they need QEMU 10.1 and no vsock
	IOMMU    bool     // gives the guest an IOMMU: its programs can get interrupts, from windows that do not share a PCI slot
	Ports    []Port   // of its functions
	Monitor  string   // socket for QMP (DialQMP); none when empty
	HotPlug  int      // root ports kept free for PlugWindow and PlugPort
	Kernel   string   // file that is booted directly
	Initrd   string
	Append   string   // kernel command line
	Disk     string   // image of the boot disk
	ARM64    bool     // an arm64 guest, on QEMU's machine virt: always emulated, without IOMMU
	NoReboot bool     // QEMU ends when the guest reboots
	Share    string   // folder of the host that the guest can mount by 9p, tag guestinit.ShareTag
	Extra    []string // QEMU arguments of the user's own

	DiskFormat  string       // DiskRaw or DiskQcow2; default: DiskFormat(Disk)
	KernelVsock *KernelVsock // instead of Vsock: the host kernel's vsock
}

// KernelVsock attaches a guest through the host kernel's vhost-vsock. The guest's memory is a named
// file so that the NIC can map it too.
type KernelVsock struct {
	CID     uint32
	RAMFile string
}

// MinMemory is the least memory of a guest in bytes.
const MinMemory = 64 << 20

// Options returns QEMU's arguments, without the program, one group per option.
func (l *CommandLine) Options() ([][]string, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	accel := l.accel()
	machine, cpu := machineType(l.IOMMU), cpuModel(accel)
	if l.ARM64 {
		machine, cpu = "virt,gic-version=3,memory-backend=m0", "max,pauth-impdef=on" // its own pointer authentication is quick to emulate
	}
	size := fmt.Sprintf("%dM", l.Memory>>20)
	memory := "memory-backend-memfd,id=m0,size=" + size + ",share=on"
	if l.KernelVsock != nil {
		memory = "memory-backend-file,id=m0,mem-path=" + escape(l.KernelVsock.RAMFile) + ",size=" + size + ",share=on"
	}
	groups := [][]string{
		{"-name", escape(l.Name)},
		{"-machine", machine},
		{"-accel", string(accel)},
		{"-cpu", cpu},
		{"-smp", smp(l.CPUs, accel)},
		{"-m", size},
		{"-object", memory},
	}
	if l.IOMMU {
		groups = append(groups, iommuArgs(len(l.Vfio) > 0))
	}
	if l.KernelVsock != nil {
		groups = append(groups, []string{"-device", fmt.Sprintf("vhost-vsock-pci,id=vsock,guest-cid=%d", l.KernelVsock.CID)})
	} else if l.Vsock != "" {
		vs := vsockArgs(l.Vsock)
		groups = append(groups, vs[:2], vs[2:])
	}
	for i, w := range l.Windows {
		groups = append(groups, windowArgs(w, windowAddress(i, len(l.Windows), l.IOMMU))...)
	}
	for i, f := range l.Vfio {
		groups = append(groups, f.args(windowAddress(len(l.Windows)+i, len(l.Windows)+len(l.Vfio), l.IOMMU)))
	}
	for _, p := range l.Ports {
		if p.Socket != "" {
			chardev, netdev, device := p.guestPort(l.Version, accel)
			groups = append(groups, []string{"-chardev", chardev}, []string{"-netdev", netdev}, []string{"-device", device})
			continue
		}
		groups = append(groups, []string{"-netdev", p.netdev()}, []string{"-device", p.device()})
	}
	if len(l.Ports) == 0 {
		groups = append(groups, []string{"-nic", "none"}) // otherwise QEMU adds a NIC that bypasses the tunnel
	}
	for i := range l.HotPlug {
		groups = append(groups, []string{"-device", rootPort(i)})
	}
	if l.Monitor != "" {
		groups = append(groups, []string{"-qmp", "unix:" + escape(l.Monitor) + ",server=on,wait=off"})
	}
	groups = append(append(groups, l.boot()...), []string{"-nographic"})
	if l.NoReboot {
		groups = append(groups, []string{"-no-reboot"})
	}
	if !slices.Contains(l.Extra, "-serial") {
		groups = append(groups, []string{"-serial", "mon:stdio"}) // Ctrl-C goes to the guest; Ctrl-A X ends QEMU
	}
	if len(l.Extra) > 0 {
		groups = append(groups, l.Extra)
	}
	return groups, nil
}

func (l *CommandLine) check() error {
	switch {
	case l.Vsock == "" && l.KernelVsock == nil && len(l.Vfio) == 0:
		return errors.New("guest without a vsock: it could not reach its functions")
	case len(l.Windows)+len(l.Vfio) > MaxWindows:
		return fmt.Errorf("guest with %d windows and functions, its PCI bus has room for %d", len(l.Windows)+len(l.Vfio), MaxWindows)
	case l.HotPlug < 0 || l.HotPlug > MaxHotPlug:
		return fmt.Errorf("guest with %d ports for hot-plug, want 0 to %d", l.HotPlug, MaxHotPlug)
	case l.ARM64 && (l.IOMMU || l.Accel == KVM):
		return errors.New("arm64 guest with an IOMMU or KVM: both are for x86-64 guests")
	case l.Memory < MinMemory || l.Memory%(1<<20) != 0:
		return fmt.Errorf("guest with %d bytes of memory, want whole MiB and 64 or more", l.Memory)
	case l.CPUs < 0 || l.CPUs > 255:
		return fmt.Errorf("guest with %d CPUs, want 1 to 255", l.CPUs)
	case l.Kernel == "" && (l.Initrd != "" || l.Append != ""):
		return errors.New("initrd and kernel command line need a kernel")
	}
	if l.Disk != "" {
		if _, err := os.Stat(l.Disk); err != nil {
			return fmt.Errorf("disk image: %w", err)
		}
	}
	return nil
}

func (l *CommandLine) boot() (groups [][]string) {
	if l.Kernel != "" {
		groups = append(groups, []string{"-kernel", l.Kernel})
	}
	if l.Initrd != "" {
		groups = append(groups, []string{"-initrd", l.Initrd})
	}
	if l.Append != "" {
		groups = append(groups, []string{"-append", l.Append})
	}
	if l.Disk != "" {
		groups = append(groups, []string{"-drive", "file=" + escape(l.Disk) + ",if=virtio,format=" + l.diskFormat()})
	}
	if l.Share != "" {
		groups = append(groups, []string{"-virtfs", "local,path=" + escape(l.Share) + ",mount_tag=" + guestinit.ShareTag + ",security_model=mapped-xattr"})
	}
	return groups
}

func (l *CommandLine) diskFormat() string {
	if l.DiskFormat != "" {
		return l.DiskFormat
	}
	return DiskFormat(l.Disk)
}

func (l *CommandLine) accel() Accel {
	switch {
	case l.ARM64:
		return TCG
	case l.Accel == "":
		return DetectAccel()
	}
	return l.Accel
}

// Program returns QEMU's program: the one that is named, or that for the guest's architecture.
func (l *CommandLine) Program() string {
	switch {
	case l.Binary != "":
		return l.Binary
	case l.ARM64:
		return "qemu-system-aarch64"
	}
	return "qemu-system-x86_64"
}

// Argv returns the program and its arguments.
func (l *CommandLine) Argv() ([]string, error) {
	groups, err := l.Options()
	if err != nil {
		return nil, err
	}
	argv := []string{l.Program()}
	for _, g := range groups {
		argv = append(argv, g...)
	}
	return argv, nil
}

// Shell returns the line for a POSIX shell, one option per row.
func (l *CommandLine) Shell() (string, error) {
	groups, err := l.Options()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(quote(l.Program()))
	for _, g := range groups {
		b.WriteString(" \\\n ")
		for _, word := range g {
			b.WriteString(" " + quote(word))
		}
	}
	return b.String() + "\n", nil
}

// quote quotes a word for a POSIX shell if it needs quotes.
func quote(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_=.,:/+@%", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

package qemu

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/falcon-vnic/vnic/qemu/guestinit"
)

// Domain returns the guest as a domain of libvirt 9 or newer, in XML. What libvirt can express
// is expressed in its words: memory, processors, disk, kernel, Ethernet ports, shared folder. The devices that
// libvirt does not know (vhost-user-vsock, ivshmem-doorbell, vfio-user) are arguments of QEMU, and
// properties that libvirt does not set are overrides. Monitor and root ports are libvirt's own, so
// Monitor and HotPlug have no effect.
func (l *CommandLine) Domain() (string, error) {
	if err := l.check(); err != nil {
		return "", err
	}
	if l.KernelVsock != nil {
		return "", errors.New("guest at the kernel's vsock: its memory is a file of a given name, and libvirt names such files itself; attach the guest by vhost-user or vfio-user")
	}
	if l.ARM64 {
		return "", errors.New("arm64 guest: domains for libvirt are for x86-64 guests")
	}
	accel := l.accel()
	cpus, room := processors(l.CPUs, accel)
	d := &libvirtxml.Domain{
		Type:   map[Accel]string{KVM: "kvm", TCG: "qemu"}[accel],
		Name:   l.Name,
		Memory: &libvirtxml.DomainMemory{Value: uint(l.Memory >> 20), Unit: "MiB"},
		MemoryBacking: &libvirtxml.DomainMemoryBacking{
			MemorySource: &libvirtxml.DomainMemorySource{Type: "memfd"},
			MemoryAccess: &libvirtxml.DomainMemoryAccess{Mode: "shared"},
		},
		VCPU:     &libvirtxml.DomainVCPU{Current: uint(cpus), Value: uint(room)},
		OS:       &libvirtxml.DomainOS{Type: &libvirtxml.DomainOSType{Arch: "x86_64", Machine: "q35", Type: "hvm"}, Cmdline: l.Append},
		Features: &libvirtxml.DomainFeatureList{ACPI: &libvirtxml.DomainFeature{}, APIC: &libvirtxml.DomainFeatureAPIC{}},
		CPU:      &libvirtxml.DomainCPU{Mode: map[Accel]string{KVM: "host-passthrough", TCG: "maximum"}[accel]},
		Devices: &libvirtxml.DomainDeviceList{
			// What libvirt would add by itself: a guest of vnic qemu has neither.
			Controllers: []libvirtxml.DomainController{{Type: "usb", Model: "none"}},
			MemBalloon:  &libvirtxml.DomainMemBalloon{Model: "none"},
			Consoles:    []libvirtxml.DomainConsole{{Source: &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}}}},
		},
		QEMUCommandline: &libvirtxml.DomainQEMUCommandline{},
	}
	if program, err := exec.LookPath(l.Program()); err == nil { // else libvirt finds its own
		if d.Devices.Emulator, err = filepath.Abs(program); err != nil {
			return "", err
		}
	}
	if l.NoReboot {
		d.OnReboot = "destroy"
	}
	if l.IOMMU {
		iommu := libvirtxml.DomainIOMMU{Model: "intel", Driver: &libvirtxml.DomainIOMMUDriver{IntRemap: "on"}}
		if len(l.Vfio) > 0 {
			iommu.Driver.CachingMode = "on"
		}
		d.Devices.IOMMUs = []libvirtxml.DomainIOMMU{iommu}
		d.Features.IOAPIC = &libvirtxml.DomainFeatureIOAPIC{Driver: "qemu"} // as machineType says it
	}
	if err := l.domainFiles(d); err != nil {
		return "", err
	}
	for _, p := range l.Ports {
		d.Devices.Interfaces = append(d.Devices.Interfaces, p.libvirt())
		if p.Socket != "" {
			if d.QEMUOverride == nil {
				d.QEMUOverride = &libvirtxml.DomainQEMUOverride{}
			}
			d.QEMUOverride.Devices = append(d.QEMUOverride.Devices, p.override(l.Version, accel))
		}
	}
	for _, word := range l.libvirtArgs() {
		d.QEMUCommandline.Args = append(d.QEMUCommandline.Args, libvirtxml.DomainQEMUCommandlineArg{Value: word})
	}
	return d.Marshal()
}

// domainFiles adds the files from which the guest starts and the folder that it shares. libvirt's
// daemon has another working folder, so their paths are made absolute.
func (l *CommandLine) domainFiles(d *libvirtxml.Domain) error {
	var errs []error
	abs := func(path string) string {
		if path == "" {
			return ""
		}
		at, err := filepath.Abs(path)
		errs = append(errs, err)
		return at
	}
	d.OS.Kernel, d.OS.Initrd = abs(l.Kernel), abs(l.Initrd)
	if l.Disk != "" {
		d.Devices.Disks = []libvirtxml.DomainDisk{{
			Device: "disk",
			Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: l.diskFormat()},
			Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: abs(l.Disk)}},
			Target: &libvirtxml.DomainDiskTarget{Dev: "vda", Bus: "virtio"},
		}}
	}
	if l.Share != "" {
		d.Devices.Filesystems = []libvirtxml.DomainFilesystem{{
			AccessMode: "mapped",
			Source:     &libvirtxml.DomainFilesystemSource{Mount: &libvirtxml.DomainFilesystemSourceMount{Dir: abs(l.Share)}},
			Target:     &libvirtxml.DomainFilesystemTarget{Dir: guestinit.ShareTag},
		}}
	}
	return errors.Join(errs...)
}

// libvirtVsock is where the vsock device is under libvirt: behind the slots of windows, and where
// libvirt puts nothing.
const libvirtVsock = "bus=pcie.0,addr=1d.0"

// libvirtArgs returns QEMU's arguments for the devices that libvirt does not know, and the user's
// own. The bus is named, because libvirt's root ports have buses too.
func (l *CommandLine) libvirtArgs() (args []string) {
	if l.Vsock != "" {
		vs := vsockArgs(l.Vsock)
		vs[len(vs)-1] += "," + libvirtVsock
		args = append(args, vs...)
	}
	for i, w := range l.Windows {
		for _, option := range windowArgs(w, "bus=pcie.0,"+windowAddress(i, len(l.Windows), l.IOMMU)) {
			args = append(args, option...)
		}
	}
	for i, f := range l.Vfio {
		args = append(args, f.args(windowAddress(len(l.Windows)+i, len(l.Windows)+len(l.Vfio), l.IOMMU))...)
	}
	return append(args, l.Extra...)
}

// alias is the name of the port's device in a domain: libvirt takes names of users' own that begin
// with ua-, without dots.
func (p Port) alias() string { return "ua-" + strings.ReplaceAll(p.id(), ".", "-") }

// libvirt returns the port as an interface of a domain. If it is a TAP, libvirt makes that in its
// bridge; without a bridge the TAP must be there.
func (p Port) libvirt() libvirtxml.DomainInterface {
	i := libvirtxml.DomainInterface{
		MAC:   &libvirtxml.DomainInterfaceMAC{Address: p.MAC},
		Model: &libvirtxml.DomainInterfaceModel{Type: "virtio"},
		Alias: &libvirtxml.DomainAlias{Name: p.alias()},
	}
	switch {
	case p.Socket != "":
		socket := &libvirtxml.DomainChardevSourceUNIX{Path: p.Socket, Mode: "server"}
		if !p.Server {
			second := uint(1)
			socket.Mode, socket.Reconnect = "client", &libvirtxml.DomainChardevSourceReconnect{Enabled: "yes", Timeout: &second}
		}
		i.Source = &libvirtxml.DomainInterfaceSource{VHostUser: &libvirtxml.DomainInterfaceSourceVHostUser{Chardev: &libvirtxml.DomainChardevSource{UNIX: socket}}}
		if p.Queues > 1 {
			i.Driver = &libvirtxml.DomainInterfaceDriver{Queues: uint(p.Queues)}
		}
		return i
	case p.Bridge != "":
		i.Source = &libvirtxml.DomainInterfaceSource{Bridge: &libvirtxml.DomainInterfaceSourceBridge{Bridge: p.Bridge}}
		i.Target = &libvirtxml.DomainInterfaceTarget{Dev: p.TAP}
	default:
		i.Source = &libvirtxml.DomainInterfaceSource{Ethernet: &libvirtxml.DomainInterfaceSourceEthernet{}}
		i.Target = &libvirtxml.DomainInterfaceTarget{Dev: p.TAP, Managed: "no"}
	}
	i.MTU = &libvirtxml.DomainInterfaceMTU{Size: uint(p.MTU)}
	return i
}

// override sets the properties of a port with a Socket that libvirt does not: it refuses an MTU for
// such an interface, and always has the device use MSI-X.
func (p Port) override(v Version, accel Accel) libvirtxml.DomainQEMUOverrideDevice {
	d := libvirtxml.DomainQEMUOverrideDevice{Alias: p.alias()}
	set := func(name, kind, value string) {
		d.Frontend.Properties = append(d.Frontend.Properties, libvirtxml.DomainQEMUOverrideProperty{Name: name, Type: kind, Value: value})
	}
	set("host_mtu", "unsigned", strconv.Itoa(p.MTU))
	if p.noMSIX(v, accel) {
		set("vectors", "unsigned", "0")
	}
	if p.Speed > 0 {
		set("speed", "signed", strconv.Itoa(p.Speed))
		set("duplex", "string", "full")
	}
	return d
}

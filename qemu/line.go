package qemu

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/falcon-vnic/vnic/qemu/guestinit"
	"github.com/falcon-vnic/vnic/qemu/ivshmem"
)

// Line is the command line of a guest somebody starts themselves: stock QEMU, 7.2
// or newer (10.1 for vfio-user), with the devices through which the guest reaches its functions and
// memory that the NIC can map.
type Line struct {
	Binary  string  // QEMU's program, default qemu-system-x86_64
	Version Version // of it (VersionOf)
	Name    string  // shown in process lists
	Memory  int64   // bytes, whole MiB
	CPUs    int
	Accel   Accel    // default: DetectAccel
	Vsock   string   // socket of a VhostUser
	Windows []Window // of its functions
	Vfio    []Vfio   // functions by vfio-user, which needs QEMU 10.1: no vsock is needed then
	IOMMU   bool     // the guest's programs can get interrupts, from windows that do not share a PCI slot
	Ports   []Port   // of its functions
	Monitor string   // socket for QMP (DialQMP); none when empty
	HotPlug int      // root ports kept free for PlugWindow and PlugPort
	Kernel  string   // boots this file directly
	Initrd  string
	Append  string   // kernel command line
	Disk    string   // boots this image
	Share   string   // folder of the host that the guest can mount by 9p, tag guestinit.ShareTag
	Extra   []string // QEMU arguments of the user's own

	DiskFormat  string       // DiskRaw or DiskQcow2; default what its name says
	KernelVsock *KernelVsock // instead of Vsock: the host kernel's vsock
}

// KernelVsock attaches a guest by the host kernel's vhost-vsock; its memory is a
// named file so that the NIC can map it too.
type KernelVsock struct {
	CID     uint32
	RAMFile string
}

// MinLineMemory is the least memory of a guest in bytes.
const MinLineMemory = 64 << 20

// Options returns QEMU's arguments, without the program, one group per option.
func (l *Line) Options() ([][]string, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	accel := l.Accel
	if accel == "" {
		accel = DetectAccel()
	}
	size := fmt.Sprintf("%dM", l.Memory>>20)
	memory := "memory-backend-memfd,id=m0,size=" + size + ",share=on"
	if l.KernelVsock != nil {
		memory = "memory-backend-file,id=m0,mem-path=" + escape(l.KernelVsock.RAMFile) + ",size=" + size + ",share=on"
	}
	groups := [][]string{
		{"-name", escape(l.Name)},
		{"-machine", machineType(l.IOMMU)},
		{"-accel", string(accel)},
		{"-cpu", cpuModel(accel)},
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
		groups = append(groups, []string{"-nic", "none"}) // else QEMU adds one that leads around the tunnel
	}
	for i := range l.HotPlug {
		groups = append(groups, []string{"-device", rootPort(i)})
	}
	if l.Monitor != "" {
		groups = append(groups, []string{"-qmp", "unix:" + escape(l.Monitor) + ",server=on,wait=off"})
	}
	boot, err := l.boot()
	if err != nil {
		return nil, err
	}
	groups = append(append(groups, boot...), []string{"-nographic"})
	if !slices.Contains(l.Extra, "-serial") {
		groups = append(groups, []string{"-serial", "mon:stdio"}) // Ctrl-C goes to the guest; Ctrl-A X ends QEMU
	}
	if len(l.Extra) > 0 {
		groups = append(groups, l.Extra)
	}
	return groups, nil
}

func cpuModel(a Accel) string {
	if a == KVM {
		return "host"
	}
	return "max"
}

// vsockArgs attach a VhostUser: the chardev, then the device.
func vsockArgs(socket string) []string {
	return []string{"-chardev", "socket,id=vsock,path=" + escape(socket), "-device", "vhost-user-vsock-pci,id=vsock,chardev=vsock"}
}

// firstWindowSlot is that of the windows on the PCI bus; eight share a slot.
const firstWindowSlot = 8

// MaxWindows is how many windows fit between the slots that QEMU fills by itself
// and those of the chipset.
const MaxWindows = windowSlots * 8

// Window is the ivshmem device of one function.
type Window struct {
	Function string // id of the device, as pf0.vf1
	Socket   string // VhostUser.AddWindow
}

func (w Window) chardev() string { return "window-" + w.Function }

// iommuArgs give the guest an IOMMU, which must come before the devices it is for. It isolates the
// guest's own devices from each other. What the NIC reaches by vhost-user it reaches by its own
// mapping; what it reaches by vfio-user goes through the IOMMU, and QEMU has to learn of each
// change (caching-mode). The interrupt controller is split for KVM, whose in-kernel one does not
// know remapped interrupts.
func iommuArgs(vfio bool) []string {
	if vfio {
		return []string{"-device", "intel-iommu,intremap=on,caching-mode=on"}
	}
	return []string{"-device", "intel-iommu,intremap=on"}
}

func machineType(iommu bool) string {
	if iommu {
		return "q35,memory-backend=m0,kernel-irqchip=split"
	}
	return "q35,memory-backend=m0"
}

// windowSlots is how many PCI slots windows have.
const windowSlots = 0x1c - firstWindowSlot

// windowAddress is where the i-th of n windows goes: eight fill a slot before the
// next is begun. Apart, each has a slot of its own as far as there are some, as
// Linux isolates slots, not the functions in one.
func windowAddress(i, n int, apart bool) string {
	slot, function := i/8, i%8
	more := function == 0
	if apart {
		slot, function = i%windowSlots, i/windowSlots
		more = function == 0 && n > i+windowSlots
	}
	at := fmt.Sprintf("addr=%02x.%d", firstWindowSlot+slot, function)
	if more {
		at += ",multifunction=on"
	}
	return at
}

// windowArgs attach a window.
func windowArgs(w Window, at string) [][]string {
	return [][]string{
		{"-chardev", "socket,id=" + w.chardev() + ",path=" + escape(w.Socket)},
		{"-device", fmt.Sprintf("ivshmem-doorbell,id=%s,chardev=%s,vectors=%d,%s", w.Function, w.chardev(), ivshmem.Vectors, at)},
	}
}

// vfioDriver is QEMU's client of vfio-user.
const vfioDriver = "vfio-user-pci"

// Vfio is a function as a PCI device by vfio-user.
type Vfio struct {
	Function string // id of the device, as pf0.vf1
	Socket   string // VfioUser.AddFunction
	MSI      bool   // VfioPCI.MSI
}

// device is what QEMU is to make; "addr" may be added.
func (f Vfio) device() map[string]any {
	return map[string]any{"driver": vfioDriver, "id": f.Function, "socket": map[string]string{"type": "unix", "path": f.Socket}}
}

// args attach the function at an address as windowAddress writes it. QEMU takes the socket in JSON
// only.
func (f Vfio) args(at string) []string {
	d := f.device()
	addr, multi, _ := strings.Cut(strings.TrimPrefix(at, "addr="), ",")
	d["addr"] = addr
	if multi != "" {
		d["multifunction"] = true
	}
	b, _ := json.Marshal(d) // strings always encode
	return []string{"-device", string(b)}
}

// Port is a function's Ethernet port as the guest has it: a virtio interface on a
// TAP that exists already, or one whose rings the NIC itself serves.
type Port struct {
	Function string `json:"function"` // as pf0.vf1
	TAP      string `json:"tap,omitempty"`
	Bridge   string `json:"bridge,omitempty"` // that the TAP is to be in; "": the operator knows
	Socket   string `json:"socket,omitempty"` // in place of a TAP: the NIC's
	Server   bool   `json:"server,omitempty"` // QEMU listens there
	Queues   int    `json:"queues,omitempty"` // pairs of queues, with Socket
	MAC      string `json:"mac"`
	MTU      int    `json:"mtu"`
	Speed    int    `json:"speed,omitempty"` // Mbit/s that the guest is told; 0: unknown
}

func (p Port) id() string { return "port-" + p.Function }

// MakeTAP is the shell command that makes the port's TAP in its bridge. Its MTU is the port's, which
// is what the guest is told by DHCP: what is longer than a TAP's own MTU would be lost without a
// word.
func (p Port) MakeTAP() string {
	bridge := cmp.Or(p.Bridge, "BRIDGE")
	return fmt.Sprintf("ip tuntap add %s mode tap && ip link set %[1]s mtu %d master %s up", p.TAP, p.MTU, bridge)
}

func (p Port) netdev() string {
	return "tap,id=" + p.id() + ",ifname=" + p.TAP + ",script=no,downscript=no"
}

func (p Port) device() string {
	line := fmt.Sprintf("virtio-net-pci,id=%s,netdev=%s,mac=%s,host_mtu=%d", p.id(), p.id(), p.MAC, p.MTU)
	if p.Speed > 0 {
		line += fmt.Sprintf(",speed=%d,duplex=full", p.Speed)
	}
	return line
}

// properties are what device says, for QEMU's monitor.
func (p Port) properties() map[string]any {
	d := map[string]any{"driver": "virtio-net-pci", "id": p.id(), "netdev": p.id(), "mac": p.MAC, "host_mtu": p.MTU}
	if p.Speed > 0 {
		d["speed"], d["duplex"] = p.Speed, "full"
	}
	return d
}

// MaxHotPlug is how many free root ports a guest can have: one slot of them.
const MaxHotPlug = 8

// rootPort is the i-th free root port. Other slots of q35 take no devices while the
// guest runs.
func rootPort(i int) string {
	multi := ""
	if i == 0 {
		multi = ",multifunction=on"
	}
	return fmt.Sprintf("pcie-root-port,id=hot%d,chassis=%d,slot=%d,addr=1c.%d%s", i, i+1, i+1, i, multi)
}

func (l *Line) check() error {
	switch {
	case l.Vsock == "" && l.KernelVsock == nil && len(l.Vfio) == 0:
		return errors.New("guest without a vsock: it could not reach its functions")
	case len(l.Windows)+len(l.Vfio) > MaxWindows:
		return fmt.Errorf("guest with %d windows and functions, its PCI bus has room for %d", len(l.Windows)+len(l.Vfio), MaxWindows)
	case l.HotPlug < 0 || l.HotPlug > MaxHotPlug:
		return fmt.Errorf("guest with %d ports for hot-plug, want 0 to %d", l.HotPlug, MaxHotPlug)
	case l.Memory < MinLineMemory || l.Memory%(1<<20) != 0:
		return fmt.Errorf("guest with %d bytes of memory, want whole MiB and 64 or more", l.Memory)
	case l.CPUs < 0 || l.CPUs > 255:
		return fmt.Errorf("guest with %d CPUs, want 1 to 255", l.CPUs)
	case l.Kernel == "" && (l.Initrd != "" || l.Append != ""):
		return errors.New("initrd and kernel command line need a kernel")
	}
	return nil
}

func (l *Line) boot() (groups [][]string, err error) {
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
		if _, err := os.Stat(l.Disk); err != nil {
			return nil, fmt.Errorf("disk image: %w", err)
		}
		format := l.DiskFormat
		if format == "" {
			format = DiskFormat(l.Disk)
		}
		groups = append(groups, []string{"-drive", "file=" + escape(l.Disk) + ",if=virtio,format=" + format})
	}
	if l.Share != "" {
		groups = append(groups, []string{"-virtfs", "local,path=" + escape(l.Share) + ",mount_tag=" + guestinit.ShareTag + ",security_model=mapped-xattr"})
	}
	return groups, nil
}

// Formats of disk images.
const (
	DiskRaw   = "raw"
	DiskQcow2 = "qcow2"
)

// DiskFormat is that of an image by its name. What it begins with says nothing: the guest writes
// that, and a header of its own would have QEMU open other files of the host.
func DiskFormat(path string) string {
	if filepath.Ext(path) == "."+DiskQcow2 {
		return DiskQcow2
	}
	return DiskRaw
}

func (l *Line) binary() string {
	if l.Binary == "" {
		return "qemu-system-x86_64"
	}
	return l.Binary
}

// Argv returns the program and its arguments.
func (l *Line) Argv() ([]string, error) {
	groups, err := l.Options()
	if err != nil {
		return nil, err
	}
	argv := []string{l.binary()}
	for _, g := range groups {
		argv = append(argv, g...)
	}
	return argv, nil
}

// Shell returns the line for a POSIX shell, one option per row.
func (l *Line) Shell() (string, error) {
	groups, err := l.Options()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(quote(l.binary()))
	for _, g := range groups {
		b.WriteString(" \\\n ")
		for _, word := range g {
			b.WriteString(" " + quote(word))
		}
	}
	return b.String() + "\n", nil
}

// quote writes a word so that a shell takes it as it is.
func quote(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_=.,:/+@%", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

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

// Line describes the command line of a guest that the user starts: stock QEMU, 7.2 or newer (10.1
// for vfio-user), with memory that the NIC can map and with the devices through which the guest
// reaches its functions.
type Line struct {
	Binary  string  // QEMU's program, default qemu-system-x86_64
	Version Version // of Binary (VersionOf)
	Name    string  // shown in process lists
	Memory  int64   // bytes, whole MiB
	CPUs    int
	Accel   Accel    // default: DetectAccel
	Vsock   string   // socket of a VhostUser
	Windows []Window // of its functions
	Vfio    []Vfio   // vfio-user functions; they need QEMU 10.1 and no vsock
	IOMMU   bool     // gives the guest an IOMMU: its programs can get interrupts, from windows that do not share a PCI slot
	Ports   []Port   // of its functions
	Monitor string   // socket for QMP (DialQMP); none when empty
	HotPlug int      // root ports kept free for PlugWindow and PlugPort
	Kernel  string   // file that is booted directly
	Initrd  string
	Append  string   // kernel command line
	Disk    string   // image of the boot disk
	Share   string   // folder of the host that the guest can mount by 9p, tag guestinit.ShareTag
	Extra   []string // QEMU arguments of the user's own

	DiskFormat  string       // DiskRaw or DiskQcow2; default: DiskFormat(Disk)
	KernelVsock *KernelVsock // instead of Vsock: the host kernel's vsock
}

// KernelVsock attaches a guest through the host kernel's vhost-vsock. The guest's memory is a named
// file so that the NIC can map it too.
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
		groups = append(groups, []string{"-nic", "none"}) // otherwise QEMU adds a NIC that bypasses the tunnel
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

// vsockArgs returns the arguments that attach a VhostUser: the chardev, then the device.
func vsockArgs(socket string) []string {
	return []string{"-chardev", "socket,id=vsock,path=" + escape(socket), "-device", "vhost-user-vsock-pci,id=vsock,chardev=vsock"}
}

// firstWindowSlot is the first PCI slot for windows; eight windows share a slot.
const firstWindowSlot = 8

// MaxWindows is the number of windows that fit between the slots that QEMU fills by itself and
// those of the chipset.
const MaxWindows = windowSlots * 8

// Window is the ivshmem device of one function.
type Window struct {
	Function string // id of the device, as pf0.vf1
	Socket   string // path given to VhostUser.AddWindow
}

func (w Window) chardev() string { return "window-" + w.Function }

// iommuArgs returns the arguments that give the guest an IOMMU. They must come before the devices
// behind it. The IOMMU isolates the guest's own devices from each other. By vhost-user the NIC
// accesses guest memory through its own mapping. By vfio-user it accesses what the IOMMU maps, and
// QEMU has to learn of each change of that (caching-mode). machineType splits the interrupt
// controller because KVM's in-kernel one does not support remapped interrupts.
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

// windowSlots is the number of PCI slots for windows.
const windowSlots = 0x1c - firstWindowSlot

// windowAddress returns the PCI address of the i-th of n windows. Eight windows fill a slot before
// the next slot is used. With apart, each window gets its own slot while there are free ones,
// because Linux isolates slots from each other but not the functions within a slot.
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

// windowArgs returns the arguments that attach a window.
func windowArgs(w Window, at string) [][]string {
	return [][]string{
		{"-chardev", "socket,id=" + w.chardev() + ",path=" + escape(w.Socket)},
		{"-device", fmt.Sprintf("ivshmem-doorbell,id=%s,chardev=%s,vectors=%d,%s", w.Function, w.chardev(), ivshmem.Vectors, at)},
	}
}

// vfioDriver is QEMU's client of vfio-user.
const vfioDriver = "vfio-user-pci"

// Vfio is a function that the guest sees as a PCI device by vfio-user.
type Vfio struct {
	Function string // id of the device, as pf0.vf1
	Socket   string // path given to VfioUser.AddFunction
	MSI      bool   // as VfioPCI.MSI
}

// device returns the properties of the device for QEMU; the caller may add "addr" or "bus".
func (f Vfio) device() map[string]any {
	return map[string]any{"driver": vfioDriver, "id": f.Function, "socket": map[string]string{"type": "unix", "path": f.Socket}}
}

// args returns the arguments that attach the function at an address in the format of
// windowAddress. They are JSON because QEMU accepts the socket in no other syntax.
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

// Port is the guest's side of a function's Ethernet port: a virtio interface on an existing TAP, or
// one whose rings the NIC itself serves.
type Port struct {
	Function string `json:"function"` // as pf0.vf1
	TAP      string `json:"tap,omitempty"`
	Bridge   string `json:"bridge,omitempty"` // that the TAP belongs in; "": the operator chooses
	Socket   string `json:"socket,omitempty"` // of the NIC that serves the port, in place of TAP
	Server   bool   `json:"server,omitempty"` // QEMU listens on Socket and the NIC connects
	Queues   int    `json:"queues,omitempty"` // number of queue pairs; only with Socket
	MAC      string `json:"mac"`
	MTU      int    `json:"mtu"`
	Speed    int    `json:"speed,omitempty"` // link speed shown to the guest, in Mbit/s; 0: unknown
}

func (p Port) id() string { return "port-" + p.Function }

// MakeTAP returns the shell command that creates the port's TAP in its bridge. The command sets the
// TAP's MTU to the port's MTU, which the guest learns by DHCP: a TAP silently drops frames that are
// longer than its own MTU.
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

// properties returns the same properties as device, for QEMU's monitor.
func (p Port) properties() map[string]any {
	d := map[string]any{"driver": "virtio-net-pci", "id": p.id(), "netdev": p.id(), "mac": p.MAC, "host_mtu": p.MTU}
	if p.Speed > 0 {
		d["speed"], d["duplex"] = p.Speed, "full"
	}
	return d
}

// MaxHotPlug is the largest number of free root ports of a guest: the functions of one slot.
const MaxHotPlug = 8

// rootPort returns the device argument of the i-th free root port. Root ports are needed because
// the slots on q35's root bus accept no devices while the guest runs.
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

// DiskFormat returns the format of an image, judged by its file name. It does not look at the
// content: the guest writes that, and with a forged header it could make QEMU open other files of
// the host.
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

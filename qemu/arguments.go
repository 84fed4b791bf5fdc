package qemu

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/falcon-vnic/vnic/qemu/ivshmem"
)

// cpuModel returns the guest's processor. TCG emulates rep movsb and rep stosb byte by byte. Linux and the C
// library copy and clear memory with them if the processor says that they are fast (ERMS, FSRM). If it does
// not say so, they move eight bytes or more at a time, and a guest boots with a seventh less work.
func cpuModel(a Accel) string {
	if a == KVM {
		return "host"
	}
	return "max,-erms,-fsrm"
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

// processors returns with how many CPUs a guest starts, and how many its machine has room for. If a
// machine under TCG can have only one CPU, QEMU before 8.1 omits the guest's memory barriers. The NIC
// runs on another thread, and without the barriers a doorbell is occasionally lost (DRV-604). Such a
// machine therefore gets room for a second CPU.
func processors(cpus int, accel Accel) (now, most int) {
	now = max(cpus, 1)
	if now == 1 && accel == TCG {
		return 1, 2
	}
	return now, now
}

// smp returns the argument of -smp.
func smp(cpus int, accel Accel) string {
	now, most := processors(cpus, accel)
	if most > now {
		return fmt.Sprintf("%d,maxcpus=%d", now, most)
	}
	return strconv.Itoa(now)
}

// escape doubles commas, which separate QEMU's options.
func escape(s string) string { return strings.ReplaceAll(s, ",", ",,") }

// NIC is an Ethernet interface of a guest: a virtio-net device whose other end is a TAP of the host
// or a software NIC that serves its rings.
type NIC struct {
	TAP  *os.File // open, with a virtio-net header; QEMU inherits it
	Port *Port    // with a Socket; replaces all other fields
	MAC  string   // of the guest's interface
	MTU  int      // shown to the guest; 0: 1500
}

// firstNIC is QEMU's descriptor number of the first TAP. It follows those that Start passes.
const firstNIC = 5

// args returns the arguments that attach a NIC. i is its index among the NICs that are TAPs.
// version returns QEMU's version; it is called only for a NIC with a Port.
func (n NIC) args(i int, version func() Version, accel Accel) []string {
	if n.Port != nil {
		chardev, netdev, device := n.Port.guestPort(version(), accel)
		return []string{"-chardev", chardev, "-netdev", netdev, "-device", device + ",romfile="}
	}
	mtu := ""
	if n.MTU > 0 {
		mtu = fmt.Sprintf(",host_mtu=%d", n.MTU)
	}
	return []string{
		"-netdev", fmt.Sprintf("tap,id=net%d,fd=%d", i, firstNIC+i),
		"-device", fmt.Sprintf("virtio-net-pci,netdev=net%d,mac=%s,romfile=%s", i, n.MAC, mtu),
	}
}

func (n NIC) check() error {
	if n.Port == nil && (n.TAP == nil || n.MAC == "") {
		return errors.New("machine with a NIC without a TAP or a MAC: both are needed")
	}
	return nil
}

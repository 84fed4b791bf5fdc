package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/ivshmem"
)

// Status describes a running guest and its functions, as QEMU reports them.
type Status struct {
	Name    string   `json:"name"`
	State   string   `json:"state"` // running, paused, shutdown, …
	Version string   `json:"version"`
	KVM     bool     `json:"kvm"`
	CPUs    int      `json:"cpus"`
	Memory  Backend  `json:"memory"`
	Devices []Device `json:"devices"`
	HotPlug HotPlug  `json:"hotplug"`
}

// Backend describes the guest's memory backend.
type Backend struct {
	ID     string `json:"id"`
	Type   string `json:"type"` // memory-backend-memfd, memory-backend-file, …
	Bytes  int64  `json:"bytes"`
	Shared bool   `json:"shared"` // if false, the NIC cannot map it
}

// Device is a device of the guest that is connected to the NIC.
type Device struct {
	ID        string `json:"id"`
	Driver    string `json:"driver"`
	PCI       string `json:"pci,omitempty"` // slot.function on the root bus, or the id of its root port
	Backend   string `json:"backend"`       // chardev or netdev
	Connected bool   `json:"connected"`     // the state of Backend
}

// HotPlug lists the root ports for devices that are plugged later.
type HotPlug struct {
	Ports int      `json:"ports"`
	Free  []string `json:"free"`
	Taken []string `json:"taken"`
}

// Inspect queries QEMU for all fields of a Status.
func Inspect(ctx context.Context, q *QMP) (*Status, error) {
	in := &inspector{ctx: ctx, q: q}
	s := &Status{}
	var name struct {
		Name string `json:"name"`
	}
	var state struct {
		Status string `json:"status"`
	}
	var version struct {
		QEMU struct{ Major, Minor, Micro int } `json:"qemu"`
	}
	var kvm struct {
		Enabled bool `json:"enabled"`
	}
	var cpus []struct{}
	in.ask("query-name", &name)
	in.ask("query-status", &state)
	in.ask("query-version", &version)
	in.ask("query-kvm", &kvm)
	in.ask("query-cpus-fast", &cpus)
	s.Name, s.State, s.KVM, s.CPUs = name.Name, state.Status, kvm.Enabled, len(cpus)
	s.Version = fmt.Sprintf("%d.%d.%d", version.QEMU.Major, version.QEMU.Minor, version.QEMU.Micro)
	s.Memory = in.memory()
	s.Devices, s.HotPlug = in.devices()
	if in.err != nil {
		return nil, in.err
	}
	return s, nil
}

// inspector sends queries to QEMU one after another. After an error it sends no more.
type inspector struct {
	ctx context.Context
	q   *QMP
	err error
}

func (in *inspector) ask(command string, result any) { in.askWith(command, nil, result) }

func (in *inspector) askWith(command string, args, result any) {
	if in.err == nil {
		in.err = in.q.Execute(in.ctx, command, args, result)
	}
}

// property reads a property of an object in QEMU's object tree.
func (in *inspector) property(path, name string, result any) {
	in.askWith("qom-get", map[string]string{"path": path, "property": name}, result)
}

// children returns the name and type of each child of an object.
func (in *inspector) children(path string) (list []child) {
	var entries []struct{ Name, Type string }
	in.askWith("qom-list", map[string]string{"path": path}, &entries)
	for _, e := range entries {
		if t, ok := strings.CutPrefix(e.Type, "child<"); ok {
			list = append(list, child{e.Name, strings.TrimSuffix(t, ">")})
		}
	}
	return list
}

type child struct{ name, kind string }

// memory returns the backend of the guest's RAM: the first one, because a CommandLine has only one.
func (in *inspector) memory() Backend {
	var all []struct {
		ID    string
		Size  int64
		Share bool
	}
	in.ask("query-memdev", &all)
	if len(all) == 0 {
		return Backend{Type: "none"} // private memory of QEMU, which no other process can map
	}
	b := Backend{ID: all[0].ID, Bytes: all[0].Size, Shared: all[0].Share, Type: "memory-backend"}
	for _, c := range in.children("/objects") {
		if c.name == b.ID {
			b.Type = c.kind
		}
	}
	return b
}

// nicDrivers are the drivers of devices connected to the NIC, each with the property that names its
// backend.
var nicDrivers = map[string]string{
	"vhost-user-vsock-pci": "chardev", "vhost-vsock-pci": "", "ivshmem-doorbell": "chardev", "virtio-net-pci": "netdev",
	vfioDriver: "",
}

func (in *inspector) devices() (list []Device, hot HotPlug) {
	connected := map[string]bool{}
	var chardevs []struct{ Label, Filename string }
	in.ask("query-chardev", &chardevs)
	for _, c := range chardevs {
		connected[c.Label] = !strings.HasPrefix(c.Filename, "disconnected:")
	}
	at := in.places()
	hot.Free, hot.Taken = []string{}, []string{}
	for _, parent := range []string{"/machine/peripheral", "/machine/peripheral-anon"} {
		for _, c := range in.children(parent) {
			if c.kind == "pcie-root-port" {
				hot.Ports++
				if slices.ContainsFunc(at, func(p place) bool { return p.port == c.name }) {
					hot.Taken = append(hot.Taken, c.name)
				} else {
					hot.Free = append(hot.Free, c.name)
				}
				continue
			}
			backend, ours := nicDrivers[c.kind]
			if !ours {
				continue
			}
			d := Device{ID: c.name, Driver: c.kind, Backend: "kernel", Connected: true}
			if c.kind == vfioDriver {
				d.Backend = "vfio-user" // QEMU does not report the socket
			}
			if backend != "" {
				in.property(parent+"/"+c.name, backend, &d.Backend)
			}
			if backend == "chardev" {
				d.Connected = connected[d.Backend]
			}
			for _, p := range at {
				if p.device == c.name {
					d.PCI = p.String()
				}
			}
			list = append(list, d)
		}
	}
	slices.Sort(hot.Free)
	slices.Sort(hot.Taken)
	slices.SortFunc(list, func(a, b Device) int { return strings.Compare(a.ID, b.ID) })
	return list, hot
}

// place is the position of a device on the PCI bus.
type place struct {
	device         string // id
	slot, function int
	port           string // id of the root port; empty: on the root bus
}

func (p place) String() string {
	if p.port != "" {
		return p.port
	}
	return fmt.Sprintf("%02x.%d", p.slot, p.function)
}

type pciDevice struct {
	ID       string `json:"qdev_id"`
	Slot     int    `json:"slot"`
	Function int    `json:"function"`
	Bridge   *struct {
		Devices []pciDevice `json:"devices"`
	} `json:"pci_bridge"`
}

func (in *inspector) places() (all []place) {
	var buses []struct{ Devices []pciDevice }
	in.ask("query-pci", &buses)
	for _, b := range buses {
		for _, d := range b.Devices {
			all = append(all, place{device: d.ID, slot: d.Slot, function: d.Function})
			if d.Bridge == nil {
				continue
			}
			for _, below := range d.Bridge.Devices {
				all = append(all, place{below.ID, below.Slot, below.Function, d.ID})
			}
		}
	}
	return all
}

// Windows and ports can be added to a running guest, each on its own root port
// (CommandLine.HotPlug). The rest of a CommandLine is fixed when QEMU starts: memory, the vsock
// device with the guest's CID, the machine.

// PlugWindow adds the window of a function to a running guest.
func PlugWindow(ctx context.Context, q *QMP, w Window) error {
	return plug(ctx, q, w.Function, func(bus string) error {
		backend := map[string]any{"type": "socket", "data": map[string]any{
			"addr":   map[string]any{"type": "unix", "data": map[string]string{"path": w.Socket}},
			"server": false,
		}}
		if err := q.Execute(ctx, "chardev-add", map[string]any{"id": w.chardev(), "backend": backend}, nil); err != nil {
			return fmt.Errorf("%w: does vnic run serve windows of this guest (windows: true)?", err)
		}
		err := q.Execute(ctx, "device_add", map[string]any{"driver": "ivshmem-doorbell", "id": w.Function, "chardev": w.chardev(), "vectors": ivshmem.Vectors, "bus": bus}, nil)
		if err != nil {
			return errors.Join(err, q.Execute(ctx, "chardev-remove", map[string]string{"id": w.chardev()}, nil))
		}
		return nil
	})
}

// PlugPort adds the Ethernet port of a function to a running guest.
func PlugPort(ctx context.Context, q *QMP, p Port) error {
	if p.Socket != "" {
		return plugGuestPort(ctx, q, p)
	}
	// QEMU would create a missing TAP, but that TAP would not be connected to anything.
	if there, err := q.hasInterface(p.TAP); err == nil && !there {
		return fmt.Errorf("port of %s: there is no TAP %s where QEMU runs; make it (%s) or name another with --tap", p.Function, p.TAP, p.MakeTAP())
	}
	return plug(ctx, q, p.id(), func(bus string) error {
		if err := q.Execute(ctx, "netdev_add", map[string]any{"type": "tap", "id": p.id(), "ifname": p.TAP, "script": "no", "downscript": "no"}, nil); err != nil {
			return fmt.Errorf("%w: is there a TAP %s that QEMU may open (ip tuntap add %[2]s mode tap)?", err, p.TAP)
		}
		device := p.properties()
		device["bus"] = bus
		err := q.Execute(ctx, "device_add", device, nil)
		if err != nil {
			return errors.Join(err, q.Execute(ctx, "netdev_del", map[string]string{"id": p.id()}, nil))
		}
		return nil
	})
}

// plug finds a free root port and calls add with its id.
func plug(ctx context.Context, q *QMP, id string, add func(bus string) error) error {
	s, err := Inspect(ctx, q)
	switch {
	case err != nil:
		return err
	case slices.ContainsFunc(s.Devices, func(d Device) bool { return d.ID == id }):
		return fmt.Errorf("%s: the guest has it already", id)
	case s.HotPlug.Ports == 0:
		return fmt.Errorf("%s: this QEMU was started without root ports to plug into; start it with vnic qemu --hotplug N", id)
	case len(s.HotPlug.Free) == 0:
		return fmt.Errorf("%s: all %d root ports of this QEMU are taken; start it with a larger --hotplug", id, s.HotPlug.Ports)
	}
	if err := add(s.HotPlug.Free[0]); err != nil {
		return fmt.Errorf("%s on %s: %w", id, s.HotPlug.Free[0], err)
	}
	return nil
}

// UnplugWindow removes a window that PlugWindow added from a running guest.
func UnplugWindow(ctx context.Context, q *QMP, w Window) error {
	if err := unplug(ctx, q, w.Function); err != nil {
		return err
	}
	return q.Execute(ctx, "chardev-remove", map[string]string{"id": w.chardev()}, nil)
}

// UnplugPort removes an Ethernet port that PlugPort added from a running guest.
func UnplugPort(ctx context.Context, q *QMP, p Port) error {
	if err := unplug(ctx, q, p.id()); err != nil {
		return err
	}
	if err := q.Execute(ctx, "netdev_del", map[string]string{"id": p.id()}, nil); err != nil || p.Socket == "" {
		return err
	}
	return q.Execute(ctx, "chardev-remove", map[string]string{"id": p.id() + "-socket"}, nil)
}

// plugGuestPort adds a vhost-user port to a running guest: one whose rings the NIC serves.
func plugGuestPort(ctx context.Context, q *QMP, p Port) error {
	s, err := Inspect(ctx, q)
	if err != nil {
		return err
	}
	version, accel, socket := parseVersion(s.Version), TCG, p.id()+"-socket"
	if s.KVM {
		accel = KVM
	}
	data := map[string]any{"addr": map[string]any{"type": "unix", "data": map[string]string{"path": p.Socket}}, "server": p.Server}
	switch {
	case p.Server:
		data["wait"] = false
	case version >= reconnectInMs:
		data["reconnect-ms"] = 1000
	default:
		data["reconnect"] = 1
	}
	device := p.properties()
	if p.Queues > 1 {
		device["mq"], device["vectors"] = true, 2*p.Queues+2
	}
	if p.noMSIX(version, accel) {
		device["vectors"] = 0
	}
	return plug(ctx, q, p.id(), func(bus string) error {
		device["bus"] = bus
		if err := q.Execute(ctx, "chardev-add", map[string]any{"id": socket, "backend": map[string]any{"type": "socket", "data": data}}, nil); err != nil {
			return fmt.Errorf("%w: does vnic run serve the port of %s?", err, p.Function)
		}
		err := q.Execute(ctx, "netdev_add", map[string]any{"type": "vhost-user", "id": p.id(), "chardev": socket, "queues": p.Queues}, nil)
		if err == nil {
			if err = q.Execute(ctx, "device_add", device, nil); err == nil {
				return nil
			}
			err = errors.Join(err, q.Execute(ctx, "netdev_del", map[string]string{"id": p.id()}, nil))
		}
		return errors.Join(err, q.Execute(ctx, "chardev-remove", map[string]string{"id": socket}, nil))
	})
}

// unplug presses the attention button of the device's root port and waits until the guest has
// released the device. That takes a guest's kernel at least 5 s (PCI Express §6.7.1.5: during that
// time the user may cancel the removal).
func unplug(ctx context.Context, q *QMP, id string) error {
	s, err := Inspect(ctx, q)
	if err != nil {
		return err
	}
	switch at := slices.IndexFunc(s.Devices, func(d Device) bool { return d.ID == id }); {
	case at < 0:
		return fmt.Errorf("%s: the guest does not have it", id)
	case !slices.Contains(s.HotPlug.Taken, s.Devices[at].PCI):
		return fmt.Errorf("%s: the guest has had it from the start, at %s: only what was plugged in can be taken away", id, s.Devices[at].PCI)
	}
	if err := q.Execute(ctx, "device_del", map[string]string{"id": id}, nil); err != nil {
		return err
	}
	for {
		select {
		case e, ok := <-q.Events():
			if !ok {
				return fmt.Errorf("%s: QEMU ended: %w", id, q.failure())
			}
			var gone struct {
				Device string `json:"device"`
			}
			if e.Name == "DEVICE_DELETED" && json.Unmarshal(e.Data, &gone) == nil && gone.Device == id {
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("%s: the guest does not release it: end the programs that use it there, then it is removed: %w", id, ctx.Err())
		}
	}
}

// hasInterface reports whether QEMU's network namespace has an interface of that name.
func (q *QMP) hasInterface(name string) (bool, error) {
	c, ok := q.conn.(*net.UnixConn)
	if !ok {
		return false, errors.New("a monitor of another machine")
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false, err
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, failed); err != nil {
		return false, err
	}
	devices, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", peer.Pid))
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(devices)) {
		if device, _, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(device) == name {
			return true, nil
		}
	}
	return false, nil
}

// PlugVfio adds a vfio-user function to a running guest.
func PlugVfio(ctx context.Context, q *QMP, f Vfio) error {
	return plug(ctx, q, f.Function, func(bus string) error {
		d := f.device()
		d["bus"] = bus
		if err := q.Execute(ctx, "device_add", d, nil); err != nil {
			return fmt.Errorf("%w: is QEMU 10.1 or newer, and does vnic run serve %s?", err, f.Socket)
		}
		return nil
	})
}

// UnplugVfio removes a function that PlugVfio added from a running guest. It refuses to unplug a
// function with MSI-X, because QEMU would exit.
func UnplugVfio(ctx context.Context, q *QMP, f Vfio) error {
	if !f.MSI {
		return fmt.Errorf("%s: QEMU 11.1 ends when a vfio-user device with MSI-X is unplugged; have the NIC give this guest's functions MSI (attach: pci: interrupts: msi)", f.Function)
	}
	return unplug(ctx, q, f.Function)
}

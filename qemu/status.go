package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"
	"syscall"
)

// DialQMP connects to the monitor of a QEMU that was started with Line.Monitor. QEMU serves one
// client of the monitor at a time.
func DialQMP(ctx context.Context, path string) (*QMP, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w: the guest does not run, or was started without this monitor (vnic qemu gives it one)", err)
	case err != nil:
		return nil, err
	}
	q, err := NewQMP(ctx, conn)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: QEMU does not answer: another client may have its monitor: %w", path, ctx.Err())
	}
	return q, err
}

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

// memory returns the backend of the guest's RAM: the first one, because a Line has only one.
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

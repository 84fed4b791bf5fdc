package vnictest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// The address plan of a Lab. Both guests are in one tenant. The underlay is a separate network that
// contains only the NICs.
const (
	tenant = 100
	MTU    = 4500 // underlay; carries RDMA MTU 4096 sealed
	Bridge = "vnic-br0"
	Sealed = 68 // overhead of a sealed plain IP packet, in bytes
)

// GuestMemory is a guest's RAM in MiB. A stock kernel, one static binary and the workload's buffers
// fit in it.
const GuestMemory = 384

// Options says how the guests of a Lab reach their functions.
type Options struct {
	Bare    bool // clients without a virtual machine, over unix sockets
	Windows bool // guests ring doorbells by ivshmem windows
	PCI     bool // guests have PCI functions by vfio-user, and no vsock
}

// Host is one of the two hosts and its guest.
type Host struct {
	Options
	Number, PeerHost uint8
	Uplink           string // name of the TAP
	Underlay, PeerIP string
	CM, PeerCM       string
	TenantIP, PeerGI string // tenant addresses of this guest's VF and of the other's
	GuestCID         uint32
	Keys             string
	Control, Socket  string // unix sockets: control API, guest attachment
	Ethernet         bool   // the guest also has an Ethernet interface
	PortSocket       string // socket of the function's port, if its rings are in guest memory
	Port, PortBridge string // otherwise: the port's TAP, and the bridge to the guest's TAP
	GuestTAP         string
	GuestTAPFile     *os.File
	GuestMAC         string // the function's MAC
	PortMTU          int
	Log, Config      string
}

func (h *Host) Name() string  { return fmt.Sprintf("host %d", h.Number) }
func (h *Host) Guest() string { return fmt.Sprintf("guest %d", h.Number) }

// newHosts returns the two hosts. run is a folder for sockets with a short path, because the paths
// of sockets may not exceed 107 bytes; out has the other files. cmPorts are free TCP ports.
func newHosts(o Options, run, out string, cmPorts [3]int) [2]*Host {
	var hs [2]*Host
	for i := range hs {
		me, peer := i+1, 2-i
		hs[i] = &Host{
			Options: o,
			Number:  uint8(me), PeerHost: uint8(peer),
			Uplink:   fmt.Sprintf("vnic-up%d", me),
			Underlay: fmt.Sprintf("10.99.0.%d", me), PeerIP: fmt.Sprintf("10.99.0.%d", peer),
			CM: fmt.Sprintf("10.98.0.%d:%d", me, cmPorts[i]), PeerCM: fmt.Sprintf("10.98.0.%d:%d", peer, cmPorts[1-i]),
			TenantIP: fmt.Sprintf("192.168.100.1%d", me), PeerGI: fmt.Sprintf("192.168.100.1%d", peer),
			GuestCID: uint32(1000 + me),
			Keys:     filepath.Join(out, "keys"),
			Control:  filepath.Join(run, fmt.Sprintf("host%d.ctl", me)),
			Socket:   filepath.Join(run, fmt.Sprintf("guest%d.sock", me)),
			Port:     fmt.Sprintf("vnic-port%d", me), PortBridge: fmt.Sprintf("vnic-gbr%d", me), GuestTAP: fmt.Sprintf("vnic-guest%d", me),
			GuestMAC: config.FunctionMAC(strconv.Itoa(me), 0, 1).String(), PortMTU: MTU - Sealed,
			Log:    filepath.Join(out, fmt.Sprintf("host%d.log", me)),
			Config: filepath.Join(out, fmt.Sprintf("host%d.yaml", me)),
		}
		if i == 0 && !o.Bare { // each kind of port is used by one guest
			hs[i].PortSocket = filepath.Join(run, "guest1-net.sock")
		}
	}
	return hs
}

var configuration = template.Must(template.New("config").Parse(`nic: {host: {{.Number}}}
log: {level: info}
control: {{.Control}}
uplink:
  backend: native
  name: {{.Uplink}}
  bridge: ` + Bridge + `
  mtu: {{.MTU}}
  address: {{.Underlay}}/24
rdma: {mtu: 4096}
cm:
  listen: {{.CM}}
  identity: {{.Keys}}
peers:
  - host: {{.PeerHost}}
    underlay: {{.PeerIP}}
    cm: {{.PeerCM}}
    identity: vnic://demo/host/{{.PeerHost}}
    tenants: [{{.Tenant}}]
functions:
  - pf: 0
    vf_count: 4
    vfs:
      - vf: 1
        tenant: {{.Tenant}}
        address: {{.TenantIP}}
{{- if .Bare}}
        guest: {unix: guest}
{{- else}}
        guest: {cid: {{.GuestCID}}}
{{- end}}
{{- if .Ethernet}}
        mac: {{.GuestMAC}}
{{- if .PortSocket}}
        port: {type: vhost-user, socket: {{.PortSocket}}, mtu: {{.PortMTU}}}
{{- else}}
        port: {mode: bridged, name: {{.Port}}, bridge: {{.PortBridge}}, mtu: {{.PortMTU}}}
{{- end}}
{{- end}}
attach:
{{- if .PCI}}
  - {type: vfio-user, socket: {{.Socket}}, cid: {{.GuestCID}}}
{{- else if .Bare}}
  - {type: unix, name: guest, socket: {{.Socket}}}
{{- else}}
  - {type: vhost-user, socket: {{.Socket}}, cid: {{.GuestCID}}{{if .Windows}}, windows: true{{end}}}
{{- end}}
`))

// WriteConfig writes the host's config file.
func (h *Host) WriteConfig() error {
	var b strings.Builder
	err := configuration.Execute(&b, struct {
		*Host
		MTU, Tenant int
	}{h, MTU, tenant})
	if err != nil {
		return err
	}
	return os.WriteFile(h.Config, []byte(b.String()), 0o644)
}

// WorkloadArgs returns the arguments of the vnic command that a guest runs, in a VM or without one.
func (h *Host) WorkloadArgs(device string, count int) []string {
	order := "--first"
	if h.Number == 2 {
		order = "--second"
	}
	return []string{"guest", "workload", "--device", device, order, "--peer", h.PeerGI, "--count", strconv.Itoa(count)}
}

// GuestNIC returns the guest's Ethernet interface: its function's port with rings in guest memory,
// or a TAP that is bridged to the port's TAP.
func (h *Host) GuestNIC() qemu.NIC {
	if h.PortSocket != "" {
		return qemu.NIC{Port: &qemu.Port{Function: "pf0.vf1", Socket: h.PortSocket, Queues: 1, MAC: h.GuestMAC, MTU: h.PortMTU, Speed: int(config.DefaultUplinkSpeed / 1e6)}}
	}
	return qemu.NIC{TAP: h.GuestTAPFile, MAC: h.GuestMAC, MTU: h.PortMTU}
}

// Device returns the URL by which the guest's programs open their function.
func (h *Host) Device() string {
	if h.PCI {
		return "pci://"
	}
	return fmt.Sprintf("vsock://2:%d", abi.Port)
}

// Attach adds the devices to a machine by which the guest reaches its functions.
func (h *Host) Attach(m *qemu.Machine) error {
	if !h.PCI {
		m.Vsock = h.Socket
	}
	if !h.PCI && !h.Windows {
		return nil
	}
	cfg, err := config.Load(h.Config)
	if err != nil {
		return err
	}
	for _, f := range cfg.FunctionsOf(h.GuestCID) {
		name, socket := f.String(), cfg.Attach[0].WindowSocket(f)
		if h.PCI {
			m.Vfio = append(m.Vfio, qemu.Vfio{Function: name, Socket: socket, MSI: cfg.Attach[0].PCI.Interrupts == config.PCIMSI})
		} else {
			m.Windows = append(m.Windows, qemu.Window{Function: name, Socket: socket})
		}
	}
	return nil
}

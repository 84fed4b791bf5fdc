package demo

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/netns"
)

// The demo's address plan. Both guests are in one tenant. The underlay is a separate network that
// contains only the NICs.
const (
	tenant  = 100
	service = 4791
	MTU     = 4500 // underlay; carries RDMA MTU 4096 sealed
	Bridge  = "vnic-br0"
	Sealed  = 68 // overhead of a sealed plain IP packet, in bytes
)

// Host is one of the demo's two hosts and its guest.
type Host struct {
	Number, PeerHost uint8
	Uplink           string // name of the TAP
	Backend          string
	Underlay, PeerIP string
	CM, PeerCM       string
	TenantIP, PeerGI string // tenant addresses of this guest's VF and of the other's
	GuestCID         uint32
	Keys             string
	Control, Socket  string // unix sockets: control API, guest attachment
	VM, Windows      bool
	Verbs            bool         // the guest runs verbs programs over the Linux driver
	PCI              bool         // the guest has its function as a PCI device, and no vsock
	space            *netns.Space // of its NIC and its bridges; nil: this process's namespace
	Ethernet         bool         // the guest also has an Ethernet interface
	PortSocket       string       // socket of the function's port, if its rings are in guest memory
	Port, PortBridge string       // otherwise: the port's TAP, and the bridge to the guest's TAP
	GuestTAP         string
	GuestTAPFile     *os.File
	GuestMAC         string // the function's MAC
	PortMTU          int
	Log, Config      string
	Capture, Mode    string // pcapng file and its content; no mode: no capture
}

func (h *Host) Name() string  { return fmt.Sprintf("host %d", h.Number) }
func (h *Host) Guest() string { return fmt.Sprintf("guest %d", h.Number) }

// NewHosts returns the two hosts. run is a folder for sockets with a short path, because the paths
// of sockets may not exceed 107 bytes. cmPorts are free TCP ports.
func NewHosts(o *Options, run string, cmPorts [2]int) [2]*Host {
	var hs [2]*Host
	for i := range hs {
		me, peer := i+1, 2-i
		backend := "native"
		if o.Fabric == "memory" {
			backend = "memory"
		}
		hs[i] = &Host{
			Number: uint8(me), PeerHost: uint8(peer),
			Uplink: fmt.Sprintf("vnic-up%d", me), Backend: backend,
			Underlay: fmt.Sprintf("10.99.0.%d", me), PeerIP: fmt.Sprintf("10.99.0.%d", peer),
			CM: fmt.Sprintf("%s:%d", hostIP(o, me), cmPorts[i]), PeerCM: fmt.Sprintf("%s:%d", hostIP(o, peer), cmPorts[1-i]),
			TenantIP: fmt.Sprintf("192.168.100.1%d", me), PeerGI: fmt.Sprintf("192.168.100.1%d", peer),
			GuestCID: uint32(1000 + me),
			Keys:     filepath.Join(o.Out, "keys"),
			Control:  filepath.Join(run, fmt.Sprintf("host%d.ctl", me)),
			Socket:   filepath.Join(run, fmt.Sprintf("guest%d.sock", me)),
			VM:       !o.NoVM,
			Windows:  o.Windows,
			PCI:      o.PCI,
			Ethernet: !o.NoVM,
			Port:     fmt.Sprintf("vnic-port%d", me), PortBridge: fmt.Sprintf("vnic-gbr%d", me), GuestTAP: fmt.Sprintf("vnic-guest%d", me),
			GuestMAC: config.FunctionMAC(strconv.Itoa(me), 0, 1).String(), PortMTU: MTU - Sealed,
			Log:     filepath.Join(o.Out, fmt.Sprintf("host%d.log", me)),
			Config:  filepath.Join(o.Out, fmt.Sprintf("host%d.yaml", me)),
			Capture: filepath.Join(o.Out, fmt.Sprintf("host%d.pcapng", me)),
			Mode:    o.capture,
		}
		if i == 0 && !o.NoVM { // each kind of port is used by one guest
			hs[i].PortSocket = filepath.Join(run, "guest1-net.sock")
		}
	}
	return hs
}

// hostIP returns the host's own address, in the network of the connection managers.
func hostIP(o *Options, host int) string {
	if o.Fabric == "memory" {
		return "127.0.0.1"
	}
	return fmt.Sprintf("10.98.0.%d", host)
}

var configuration = template.Must(template.New("config").Parse(`# Written by vnic demo; a good start for your own (vnic run -c THIS).
nic: {host: {{.Number}}}
log: {level: info}
control: {{.Control}}
uplink:
  backend: {{.Backend}}
  name: {{.Uplink}}
{{- if eq .Backend "native"}}
  bridge: ` + Bridge + `
{{- end}}
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
{{- if .VM}}
        guest: {cid: {{.GuestCID}}}
{{- else}}
        guest: {unix: guest}
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
{{- else if .VM}}
  - {type: vhost-user, socket: {{.Socket}}, cid: {{.GuestCID}}{{if .Windows}}, windows: true{{end}}}
{{- else}}
  - {type: unix, name: guest, socket: {{.Socket}}}
{{- end}}
{{- if .Mode}}
capture: {file: {{.Capture}}, mode: {{.Mode}}}
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

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/netns"
)

// The demo's address plan. Both guests are in one tenant. The underlay is a separate network that
// contains only the NICs.
const (
	demoTenant  = 100
	demoService = 4791
	demoMTU     = 4500 // underlay; carries RDMA MTU 4096 sealed
	demoBridge  = "vnic-br0"
	demoSealed  = 68 // overhead of a sealed plain IP packet, in bytes
)

// demoHost is one of the demo's two hosts and its guest.
type demoHost struct {
	Host, PeerHost   uint8
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
	guestTAP         *os.File
	GuestMAC         string // the function's MAC
	PortMTU          int
	Log, Config      string
	Capture, Mode    string // pcapng file and its content; no mode: no capture
}

func (h *demoHost) name() string  { return fmt.Sprintf("host %d", h.Host) }
func (h *demoHost) guest() string { return fmt.Sprintf("guest %d", h.Host) }

// newHosts returns the two hosts. run is a folder for sockets with a short path, because the paths
// of sockets may not exceed 107 bytes. cmPorts are free TCP ports.
func newHosts(o *demoOptions, run string, cmPorts [2]int) [2]*demoHost {
	var hs [2]*demoHost
	for i := range hs {
		me, peer := i+1, 2-i
		backend := "native"
		if o.fabric == "memory" {
			backend = "memory"
		}
		hs[i] = &demoHost{
			Host: uint8(me), PeerHost: uint8(peer),
			Uplink: fmt.Sprintf("vnic-up%d", me), Backend: backend,
			Underlay: fmt.Sprintf("10.99.0.%d", me), PeerIP: fmt.Sprintf("10.99.0.%d", peer),
			CM: fmt.Sprintf("%s:%d", hostIP(o, me), cmPorts[i]), PeerCM: fmt.Sprintf("%s:%d", hostIP(o, peer), cmPorts[1-i]),
			TenantIP: fmt.Sprintf("192.168.100.1%d", me), PeerGI: fmt.Sprintf("192.168.100.1%d", peer),
			GuestCID: uint32(1000 + me),
			Keys:     filepath.Join(o.out, "keys"),
			Control:  filepath.Join(run, fmt.Sprintf("host%d.ctl", me)),
			Socket:   filepath.Join(run, fmt.Sprintf("guest%d.sock", me)),
			VM:       !o.noVM,
			Windows:  o.windows,
			PCI:      o.pci,
			Ethernet: !o.noVM,
			Port:     fmt.Sprintf("vnic-port%d", me), PortBridge: fmt.Sprintf("vnic-gbr%d", me), GuestTAP: fmt.Sprintf("vnic-guest%d", me),
			GuestMAC: config.FunctionMAC(uint8(me), 0, 1).String(), PortMTU: demoMTU - demoSealed,
			Log:     filepath.Join(o.out, fmt.Sprintf("host%d.log", me)),
			Config:  filepath.Join(o.out, fmt.Sprintf("host%d.yaml", me)),
			Capture: filepath.Join(o.out, fmt.Sprintf("host%d.pcapng", me)),
			Mode:    o.capture,
		}
		if i == 0 && !o.noVM { // each kind of port is used by one guest
			hs[i].PortSocket = filepath.Join(run, "guest1-net.sock")
		}
	}
	return hs
}

// hostIP returns the host's own address, in the network of the connection managers.
func hostIP(o *demoOptions, host int) string {
	if o.fabric == "memory" {
		return "127.0.0.1"
	}
	return fmt.Sprintf("10.98.0.%d", host)
}

var demoYAML = template.Must(template.New("config").Parse(`# Written by vnic demo; a good start for your own (vnic run -c THIS).
nic: {host: {{.Host}}}
log: {level: info}
control: {{.Control}}
uplink:
  backend: {{.Backend}}
  name: {{.Uplink}}
{{- if eq .Backend "native"}}
  bridge: ` + demoBridge + `
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

// writeConfig writes the host's config file.
func (h *demoHost) writeConfig() error {
	var b strings.Builder
	err := demoYAML.Execute(&b, struct {
		*demoHost
		MTU, Tenant int
	}{h, demoMTU, demoTenant})
	if err != nil {
		return err
	}
	return os.WriteFile(h.Config, []byte(b.String()), 0o644)
}

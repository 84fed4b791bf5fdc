package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Types of a function's port.
const (
	PortTAP       = "tap"        // a kernel device
	PortVhostUser = "vhost-user" // the guest's virtio-net rings, in its memory
)

// Modes of a function's TAP.
const (
	PortDirect  = "direct"  // the device itself has the function's MAC: for a namespace, a container or macvtap
	PortBridged = "bridged" // the device has another MAC, so that a bridge finds the guest's MAC behind it
)

// Who makes the socket of a port of type vhost-user.
const (
	ListenNIC   = "nic"   // the NIC listens, the guest's QEMU connects
	ListenGuest = "guest" // QEMU listens (server=on), and the NIC connects, and reconnects if needed
)

// MaxPortQueues is the maximum number of queue pairs of a guest's port.
const MaxPortQueues = 16

// maxSocketPath is the longest path that fits into struct sockaddr_un.
const maxSocketPath = 107

// Port is a function's Ethernet port: a TAP whose kernel device a guest, a container or a namespace
// uses, or a guest's virtio-net device that the NIC itself serves.
type Port struct {
	Type      string       `yaml:"type" use:"tap or vhost-user" doc:"tap: a kernel device; vhost-user: a virtio-net device in the guest's memory, served by the NIC itself"`
	Socket    string       `yaml:"socket" default:"required" doc:"vhost-user: socket of QEMU's -chardev, as vnic qemu prints it"`
	Listen    string       `yaml:"listen" use:"nic or guest" default:"nic" doc:"vhost-user: who makes the socket, the NIC or the guest's QEMU (server=on)"`
	Queues    int          `yaml:"queues" use:"1 to 16" default:"1" doc:"vhost-user: queue pairs that the guest may use"`
	Mode      string       `yaml:"mode" use:"direct or bridged" doc:"direct: the device has the function's MAC address, for a namespace, a container or macvtap; bridged: a bridge with the guest's interface behind it"`
	Name      string       `yaml:"name" use:"at most 15 characters" default:"required for tap" doc:"network device to make"`
	Bridge    string       `yaml:"bridge" default:"none" doc:"bridged: bridge to join"`
	Netns     string       `yaml:"netns" default:"the NIC's own" doc:"direct: network namespace of the device, by its name (ip netns) or a path as /proc/1234/ns/net"`
	MTU       int          `yaml:"mtu" use:"576 to uplink.mtu less 68" default:"the largest" doc:"bytes of IP packet; a sealed packet has 68 bytes around it (88 for IPv6 outside)"`
	MAC       MAC          `yaml:"mac" default:"from cm.name, PF and VF" doc:"bridged: the device's own MAC address; the guest has the function's"`
	Addresses []netip.Addr `yaml:"addresses" use:"at most 16" default:"none" doc:"more addresses of the function"`
	Persist   bool         `yaml:"persist" use:"true or false" doc:"the device stays when the NIC stops, with its addresses and routes; ip link del removes it"`
	Assign    *bool        `yaml:"assign" use:"true or false" doc:"the gateway tells the guest its addresses, by DHCP and router advertisements"`
}

const minPortMTU = 576

// checkPort checks the port of a function that is described at who.
func (c *Config) checkPort(r *report, who string, f *Function, taken *Taken) {
	p, path := f.Port, who+".port"
	if p == nil {
		return
	}
	oneOf(r, path+".type", p.Type, PortTAP, PortVhostUser)
	if f.Tenant == 0 {
		r.add(path, "the function is in no tenant", "give the function a tenant and an address, or leave the port out")
	}
	if p.Type == PortVhostUser {
		p.checkVhostUser(r, who, taken)
	} else {
		c.checkTAP(r, who, f, taken)
	}
	c.checkPortAddresses(r, who, f, taken)
	c.checkSubnets(r, who, f)
	c.checkPortMTU(r, path+".mtu", f)
}

// checkTAP checks the settings that only TAP ports have.
func (c *Config) checkTAP(r *report, who string, f *Function, taken *Taken) {
	p, path := f.Port, who+".port"
	oneOf(r, path+".mode", p.Mode, PortDirect, PortBridged)
	for key, is := range map[string]bool{"socket": p.Socket != "", "queues": p.Queues != 0, "listen": p.Listen != ""} {
		if is {
			r.add(path+"."+key, "a TAP has none", "use type vhost-user, or leave it out")
		}
	}
	if p.Name == "" {
		r.add(path+".name", "missing", "name the TAP device to make, as vp1")
	} else if other, dup := by(taken.names, p.Name, who); dup {
		r.inUse(path+".name", fmt.Sprintf("%q is already used by %s", p.Name, other), "give each device its own name")
	} else {
		checkIfName(r, path+".name", p.Name)
	}
	switch {
	case p.Bridge == "":
	case p.Mode == PortDirect:
		r.add(path+".bridge", "a direct port carries the function's MAC, and a bridge would deliver nothing to a guest that has the same", "use mode bridged")
	case p.Bridge == p.Name || p.Bridge == c.Uplink.Bridge:
		r.add(path+".bridge", fmt.Sprintf("%q is the port itself or the uplink's bridge", p.Bridge), "name a bridge of its own: tenants' clear packets must not reach the fabric")
	default:
		checkIfName(r, path+".bridge", p.Bridge)
	}
	switch {
	case p.Netns == "":
	case p.Mode == PortBridged:
		r.add(path+".netns", "a bridged port stays where its bridge is", "use mode direct, or leave it out")
	case strings.Contains(p.Netns, "/") && !filepath.IsAbs(p.Netns):
		r.add(path+".netns", fmt.Sprintf("%q is neither a name nor an absolute path", p.Netns), "write the name that ip netns knows, or a path as /proc/1234/ns/net")
	}
	switch {
	case p.Mode == PortDirect && p.MAC != f.MAC:
		r.add(path+".mac", fmt.Sprintf("%s is not the function's %s", p.MAC, f.MAC), "leave it out, or use mode bridged")
	case p.Mode == PortBridged && p.MAC == f.MAC:
		r.add(path+".mac", fmt.Sprintf("%s is the function's own", p.MAC), "use another, or leave it out: a bridge delivers nothing to a guest whose MAC its port has")
	case p.Mode == PortBridged:
		if other, dup := by(taken.macs, p.MAC, who); dup {
			r.inUse(path+".mac", fmt.Sprintf("%s is already used by %s", r.value(path+".mac", p.MAC), other), "give each port a MAC of its own")
		}
	}
}

// checkVhostUser checks the settings that only ports in guests' memory have.
func (p *Port) checkVhostUser(r *report, who string, taken *Taken) {
	path := who + ".port"
	oneOf(r, path+".listen", p.Listen, ListenNIC, ListenGuest)
	switch other, dup := by(taken.names, p.Socket, who); {
	case p.Socket == "":
		r.add(path+".socket", "missing", "name the unix socket that the guest's QEMU uses, as /run/vnic/vm1-net.sock")
	case len(p.Socket) > maxSocketPath:
		r.add(path+".socket", fmt.Sprintf("%q has %d bytes, a socket's path may have %d", p.Socket, len(p.Socket), maxSocketPath), "choose a shorter folder")
	case dup:
		r.inUse(path+".socket", fmt.Sprintf("%q is already used by %s", p.Socket, other), "give each port its own")
	}
	if other, dup := by(taken.names, p.Name, who); dup {
		r.inUse(path+".name", fmt.Sprintf("%s is already used by %s", r.value(path+".name", strconv.Quote(p.Name)), other), "give each port its own name")
	}
	if p.Queues < 1 || p.Queues > MaxPortQueues {
		r.add(path+".queues", fmt.Sprintf("%d is out of range", p.Queues), fmt.Sprintf("use 1 to %d pairs", MaxPortQueues))
	}
	for _, x := range []struct {
		key string
		is  bool
	}{{"mode", p.Mode != ""}, {"bridge", p.Bridge != ""}, {"netns", p.Netns != ""}, {"mac", !p.MAC.IsZero()}, {"persist", p.Persist}} {
		if x.is {
			r.add(path+"."+x.key, "a port of type vhost-user has no kernel device", "leave it out, or use type tap")
		}
	}
}

func (c *Config) checkPortAddresses(r *report, who string, f *Function, taken *Taken) {
	path := who + ".port"
	for i, a := range f.Port.Addresses {
		q := fmt.Sprintf("%s.addresses[%d]", path, i)
		if !usable(a) || a.IsLinkLocalUnicast() {
			r.add(q, fmt.Sprintf("%s cannot be a function's address", a), "write it as 192.168.100.11 or fd00:100::11")
			continue
		}
		other, dup := by(taken.addresses, tenantAddr{f.Tenant, a}, who)
		if a == f.Address || slices.Contains(f.Port.Addresses[:i], a) {
			other, dup = who, true
		}
		if dup {
			r.inUse(q, fmt.Sprintf("%s in tenant %d is already used by %s", a, f.Tenant, other), "give each function of a tenant its own addresses, each once")
		}
	}
	if n := len(f.Port.Addresses); n > maxPortAddresses {
		r.add(path+".addresses", fmt.Sprintf("%d are listed", n), fmt.Sprintf("list at most %d; a network behind the function is a route of its tenant", maxPortAddresses))
	}
}

const maxPortAddresses = 16

// checkSubnets checks that the subnets of a function's tenant, if configured, contain all addresses
// of the function.
func (c *Config) checkSubnets(r *report, who string, f *Function) {
	i := slices.IndexFunc(c.Tenants, func(t Tenant) bool { return t.Tenant == f.Tenant && len(t.Subnets) > 0 })
	if i < 0 {
		return
	}
	for _, a := range f.Addresses() {
		if !c.Tenants[i].contains(a) {
			r.add(fmt.Sprintf("tenants[%d].subnets", i), fmt.Sprintf("none contains %s, an address of %s", a, who), fmt.Sprintf("add its network, as %s", defaultSubnet(a)))
		}
	}
}

func (c *Config) checkPortMTU(r *report, path string, f *Function) {
	fits := c.Uplink.MTU - c.SealedOverhead()
	least := minPortMTU
	for _, a := range f.Addresses() {
		if a.Is6() {
			least = minIPv6MTU
		}
	}
	switch mtu := f.Port.MTU; {
	case c.Uplink.MTU < minUplinkMTU: // already reported
	case fits < least:
		r.add(path, fmt.Sprintf("uplink.mtu %d leaves %d bytes for packets sealed with %d bytes around them", c.Uplink.MTU, fits, c.SealedOverhead()), fmt.Sprintf("raise uplink.mtu to %d or more", least+c.SealedOverhead()))
	case mtu > fits:
		r.add(path, fmt.Sprintf("%d does not fit uplink.mtu %d: with %d bytes around a sealed packet it needs %d", mtu, c.Uplink.MTU, c.SealedOverhead(), mtu+c.SealedOverhead()), fmt.Sprintf("write %d or less, leave it out, or raise uplink.mtu", fits))
	case mtu < least:
		r.add(path, fmt.Sprintf("%d is out of range", mtu), fmt.Sprintf("use %d to %d bytes", least, fits))
	}
}

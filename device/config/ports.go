package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/underlay"
)

// Types of a function's port.
const (
	PortTAP       = "tap"        // a kernel device
	PortVhostUser = "vhost-user" // the guest's virtio-net rings, in its memory
)

// Modes of a function's TAP.
const (
	PortDirect  = "direct"  // the device itself carries the function's MAC: for a namespace, a container or macvtap
	PortBridged = "bridged" // another MAC, so that a bridge finds the guest's behind it
)

// Port is a function's Ethernet port: a TAP whose kernel device a guest, a container or a namespace
// plugs into, or the virtio-net device of a guest that the NIC itself serves.
type Port struct {
	Type      string       `yaml:"type"`      // tap (the default) or vhost-user
	Socket    string       `yaml:"socket"`    // vhost-user: where the guest's QEMU connects to, or with listen: guest listens
	Listen    string       `yaml:"listen"`    // vhost-user: who makes the socket, nic (the default) or guest
	Queues    int          `yaml:"queues"`    // vhost-user: pairs of queues that the guest may use at most; default 1
	Mode      string       `yaml:"mode"`      // direct or bridged
	Name      string       `yaml:"name"`      // of the network device, at most 15 characters
	Bridge    string       `yaml:"bridge"`    // bridged: bridge to join; empty: none yet
	Netns     string       `yaml:"netns"`     // direct: network namespace of the device, by its name ("ip netns") or path; empty: the NIC's own
	MTU       int          `yaml:"mtu"`       // bytes of IP packet; default what fits the uplink sealed
	MAC       MAC          `yaml:"mac"`       // of the device, bridged only; derived when absent
	Addresses []netip.Addr `yaml:"addresses"` // further addresses of the function in the tenant, IPv4 or IPv6
	Persist   bool         `yaml:"persist"`   // the device stays when the NIC stops, with what others did to it, and is taken again
	Assign    *bool        `yaml:"assign"`    // the gateway gives the guest its address by DHCP and router advertisements; Parse makes it never nil
}

// Tenant describes a virtual network to the ports in it.
type Tenant struct {
	Tenant  uint32         `yaml:"tenant"`
	Subnets []netip.Prefix `yaml:"subnets"` // on-link at every port; default /24 and /64 around each function's addresses
	Routers []netip.Addr   `yaml:"routers"` // addresses in the subnets that every port's gateway answers to
	DNS     []netip.Addr   `yaml:"dns"`     // told to guests
	Routes  []Route        `yaml:"routes"`  // networks behind functions
}

// Route says that a function of the tenant, here or at a peer, leads to a network.
type Route struct {
	Prefix netip.Prefix `yaml:"prefix"`
	Via    netip.Addr   `yaml:"via"` // an address of that function
}

// SealedOverhead is what a port's IP packet is wrapped in below the uplink's MTU: outer IP and UDP,
// and the seal.
func (c *Config) SealedOverhead() int {
	return underlay.HeaderLen(c.Uplink.Address.Addr()) + security.PlainOverhead
}

// DevicePortMAC is the address a bridged port's device gets when none is configured.
func DevicePortMAC(host, pf uint8, vf uint16) MAC {
	m := FunctionMAC(host, pf, vf)
	m[2] = 0x50
	return m
}

// Addresses lists all addresses of the function in its tenant, its GID first.
func (f *Function) Addresses() []netip.Addr {
	if !f.Address.IsValid() {
		return nil
	}
	all := []netip.Addr{f.Address}
	if f.Port != nil {
		all = append(all, f.Port.Addresses...)
	}
	return all
}

// SetPortDefaults completes what ports leave out. Parse has done it; whoever adds ports later does
// it again.
func (c *Config) SetPortDefaults() {
	for _, f := range c.AllFunctions() {
		c.setPortDefaults(f)
	}
}

// SetPortDefaults completes what the port of one function leaves out.
func (f NamedFunction) SetPortDefaults(c *Config) { c.setPortDefaults(f) }

func (c *Config) setPortDefaults(f NamedFunction) {
	p := f.Port
	if p == nil {
		return
	}
	set(&p.Type, PortTAP)
	set(&p.MTU, c.Uplink.MTU-c.SealedOverhead())
	if p.Assign == nil {
		p.Assign = ptr(true)
	}
	if p.Type == PortVhostUser {
		set(&p.Name, f.String())
		set(&p.Queues, 1)
		set(&p.Listen, ListenNIC)
		return
	}
	set(&p.Mode, PortDirect)
	if p.MAC.IsZero() {
		p.MAC = f.MAC
		if p.Mode == PortBridged {
			p.MAC = DevicePortMAC(c.NIC.Host, f.PF, f.VF)
		}
	}
}

func ptr[T any](v T) *T { return &v }

const minPortMTU = 576

// checkPort checks a function's port. names holds network devices already taken.
func (c *Config) checkPort(r *report, path string, f *Function, names map[string]string, owners map[tenantAddr]string, macs map[MAC]string) {
	p := f.Port
	if p == nil {
		return
	}
	oneOf(r, path+".type", p.Type, PortTAP, PortVhostUser)
	if f.Tenant == 0 {
		r.add(path, "the function is in no tenant", "give the function a tenant and an address, or leave the port out")
	}
	if p.Type == PortVhostUser {
		p.checkVhostUser(r, path, names)
	} else {
		c.checkTAP(r, path, f, names, macs)
	}
	c.checkPortAddresses(r, path, f, owners)
	c.checkPortMTU(r, path+".mtu", f)
}

// checkTAP checks what only ports that are TAPs have.
func (c *Config) checkTAP(r *report, path string, f *Function, names map[string]string, macs map[MAC]string) {
	p := f.Port
	oneOf(r, path+".mode", p.Mode, PortDirect, PortBridged)
	for key, is := range map[string]bool{"socket": p.Socket != "", "queues": p.Queues != 0, "listen": p.Listen != ""} {
		if is {
			r.add(path+"."+key, "a TAP has none", "use type vhost-user, or leave it out")
		}
	}
	if p.Name == "" {
		r.add(path+".name", "missing", "name the TAP device to make, as vp1")
	} else if first, dup := names[p.Name]; dup {
		r.add(path+".name", fmt.Sprintf("%q is already %s", p.Name, first), "give each device its own name")
	} else {
		checkIfName(r, path+".name", p.Name)
		names[p.Name] = path
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
		if first, dup := macs[p.MAC]; dup {
			r.add(path+".mac", fmt.Sprintf("%s is already used by %s", p.MAC, first), "give each port its own, or leave it out to have one derived")
		}
		macs[p.MAC] = path
	}
}

func (c *Config) checkPortAddresses(r *report, path string, f *Function, owners map[tenantAddr]string) {
	for i, a := range f.Port.Addresses {
		q := fmt.Sprintf("%s.addresses[%d]", path, i)
		if !usable(a) || a.IsLinkLocalUnicast() {
			r.add(q, fmt.Sprintf("%s cannot be a function's address", a), "write it as 192.168.100.11 or fd00:100::11")
			continue
		}
		key := tenantAddr{f.Tenant, a}
		if first, dup := owners[key]; dup {
			r.add(q, fmt.Sprintf("%s in tenant %d is already %s", a, f.Tenant, first), "give each function of a tenant its own addresses")
			continue
		}
		owners[key] = q
	}
	if n := len(f.Port.Addresses); n > maxPortAddresses {
		r.add(path+".addresses", fmt.Sprintf("%d are listed", n), fmt.Sprintf("list at most %d; a network behind the function is a route of its tenant", maxPortAddresses))
	}
}

const maxPortAddresses = 16

func (c *Config) checkPortMTU(r *report, path string, f *Function) {
	fits := c.Uplink.MTU - c.SealedOverhead()
	least := minPortMTU
	for _, a := range f.Addresses() {
		if a.Is6() {
			least = minIPv6MTU
		}
	}
	switch mtu := f.Port.MTU; {
	case c.Uplink.MTU < minUplinkMTU: // said already
	case fits < least:
		r.add(path, fmt.Sprintf("uplink.mtu %d leaves %d bytes for packets sealed with %d bytes around them", c.Uplink.MTU, fits, c.SealedOverhead()), fmt.Sprintf("raise uplink.mtu to %d or more", least+c.SealedOverhead()))
	case mtu > fits:
		r.add(path, fmt.Sprintf("%d does not fit uplink.mtu %d: with %d bytes around a sealed packet it needs %d", mtu, c.Uplink.MTU, c.SealedOverhead(), mtu+c.SealedOverhead()), fmt.Sprintf("write %d or less, leave it out, or raise uplink.mtu", fits))
	case mtu < least:
		r.add(path, fmt.Sprintf("%d is out of range", mtu), fmt.Sprintf("use %d to %d bytes", least, fits))
	}
}

// checkTenants checks what is said of virtual networks.
func (c *Config) checkTenants(r *report) {
	seen, networks := map[uint32]int{}, c.Networks()
	for i := range c.Tenants {
		t, path := &c.Tenants[i], fmt.Sprintf("tenants[%d]", i)
		switch first, dup := seen[t.Tenant]; {
		case t.Tenant == 0:
			r.add(path+".tenant", "missing or 0", "name the tenant, 1 or above")
		case dup:
			r.add(path+".tenant", fmt.Sprintf("%d is already tenants[%d]", t.Tenant, first), "describe each tenant once")
		}
		seen[t.Tenant] = i
		c.checkTenant(r, path, t, networks.Of(t.Tenant))
	}
	for _, f := range c.AllFunctions() {
		if f.Port == nil || f.Tenant == 0 {
			continue
		}
		t := networks.Of(f.Tenant)
		for _, a := range f.Addresses() {
			if i, ok := seen[f.Tenant]; ok && !t.contains(a) {
				r.add(fmt.Sprintf("tenants[%d].subnets", i), fmt.Sprintf("none holds %s, an address of %s", a, f), fmt.Sprintf("add its network, as %s", defaultSubnet(a)))
			}
		}
	}
}

func (c *Config) checkTenant(r *report, path string, t *Tenant, whole Tenant) {
	for i, p := range t.Subnets {
		q := fmt.Sprintf("%s.subnets[%d]", path, i)
		switch {
		case p.Bits() < 8 || p.Addr().IsMulticast() || p.Addr().IsLinkLocalUnicast():
			r.add(q, fmt.Sprintf("%s cannot be a tenant's subnet", p), "write it as 192.168.100.0/24 or fd00:100::/64")
		case p != p.Masked():
			r.add(q, fmt.Sprintf("%s has bits behind its length", p), fmt.Sprintf("write %s", p.Masked()))
		}
		for j, o := range t.Subnets[:i] {
			if o.Overlaps(p) {
				r.add(q, fmt.Sprintf("%s overlaps subnets[%d]", p, j), "give each network once")
			}
		}
	}
	for i, a := range t.Routers {
		q := fmt.Sprintf("%s.routers[%d]", path, i)
		if !whole.contains(a) {
			r.add(q, fmt.Sprintf("%s is in none of the tenant's subnets", a), "use a free address of a subnet, as 192.168.100.1")
		}
		for _, f := range c.AllFunctions() {
			if f.Tenant == t.Tenant && slices.Contains(f.Addresses(), a) {
				r.add(q, fmt.Sprintf("%s is the address of %s", a, f), "use a free address of the subnet")
			}
		}
	}
	for i, a := range t.DNS {
		if !usable(a) {
			r.add(fmt.Sprintf("%s.dns[%d]", path, i), fmt.Sprintf("%s cannot be a server's address", a), "write it as 192.168.100.53")
		}
	}
	for i, a := range t.Routes {
		q := fmt.Sprintf("%s.routes[%d]", path, i)
		switch {
		case !a.Prefix.IsValid() || a.Prefix != a.Prefix.Masked():
			r.add(q+".prefix", "missing, or has bits behind its length", "write it as 10.1.0.0/16")
		case !usable(a.Via) || a.Via.Is4() != a.Prefix.Addr().Is4():
			r.add(q+".via", "missing, or not an address of the prefix's IP version", "name an address of the function that leads there, as 192.168.100.11")
		}
		if slices.ContainsFunc(t.Routes[:i], func(b Route) bool { return b.Prefix == a.Prefix }) {
			r.add(q+".prefix", fmt.Sprintf("%s is listed twice", a.Prefix), "a network is behind one function")
		}
	}
	slices.SortStableFunc(t.Routes, func(a, b Route) int { return cmp.Compare(b.Prefix.Bits(), a.Prefix.Bits()) })
}

func (t *Tenant) contains(a netip.Addr) bool {
	return slices.ContainsFunc(t.Subnets, func(p netip.Prefix) bool { return p.Contains(a) })
}

package config

import "net/netip"

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

// Port is a function's Ethernet port: a TAP whose kernel device a guest, a container or a namespace
// uses, or a guest's virtio-net device that the NIC itself serves.
type Port struct {
	Type      string       `yaml:"type"`                 // tap (the default) or vhost-user
	Socket    string       `yaml:"socket"`               // vhost-user: the socket to which the guest's QEMU connects, or with listen: guest listens
	Listen    string       `yaml:"listen"`               // vhost-user: who creates the socket, nic (the default) or guest
	Queues    int          `yaml:"queues" use:"1 to 16"` // vhost-user: maximum number of queue pairs of the guest; default 1
	Mode      string       `yaml:"mode"`                 // direct or bridged
	Name      string       `yaml:"name"`                 // of the network device, at most 15 characters
	Bridge    string       `yaml:"bridge"`               // bridged: bridge to join; empty: none yet
	Netns     string       `yaml:"netns"`                // direct: network namespace of the device, by its name ("ip netns") or path; empty: the NIC's own
	MTU       int          `yaml:"mtu"`                  // bytes of IP packet; default: the longest packet that fits the uplink when sealed
	MAC       MAC          `yaml:"mac"`                  // of the device, bridged only; derived when absent
	Addresses []netip.Addr `yaml:"addresses"`            // further addresses of the function in the tenant, IPv4 or IPv6
	Persist   bool         `yaml:"persist"`              // the device stays unchanged when the NIC stops, and is used again by the next
	Assign    *bool        `yaml:"assign"`               // the gateway gives the guest its address by DHCP and router advertisements; Parse makes it never nil
}

// Tenant describes a virtual network to the ports in it.
type Tenant struct {
	Tenant  uint32         `yaml:"tenant" use:"1 to 4294967295"`
	Subnets []netip.Prefix `yaml:"subnets"` // on-link at every port; default /24 and /64 around each function's addresses
	Routers []netip.Addr   `yaml:"routers"` // addresses in the subnets that every port's gateway has
	DNS     []netip.Addr   `yaml:"dns"`     // announced to guests
	Routes  []Route        `yaml:"routes"`  // networks behind functions
}

// Route says that a function of the tenant, here or at a peer, leads to a network.
type Route struct {
	Prefix netip.Prefix `yaml:"prefix"`
	Via    netip.Addr   `yaml:"via"` // an address of that function
}

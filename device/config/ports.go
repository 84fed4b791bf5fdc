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

// Tenant describes a virtual network to the ports in it.
type Tenant struct {
	Tenant  uint32         `yaml:"tenant" use:"1 to 4294967295" default:"required" doc:"a virtual network, as the ports of its functions see it"`
	Subnets []netip.Prefix `yaml:"subnets" default:"/24 and /64 around the functions" doc:"networks that are on-link at every port"`
	Routers []netip.Addr   `yaml:"routers" default:"none" doc:"addresses that the gateway itself answers to at every port; guests learn them by DHCP"`
	DNS     []netip.Addr   `yaml:"dns" default:"none" doc:"name servers, told to guests"`
	Routes  []Route        `yaml:"routes" doc:"networks behind functions, here or at peers"`
}

// Route says that a function of the tenant, here or at a peer, leads to a network.
type Route struct {
	Prefix netip.Prefix `yaml:"prefix" default:"required" doc:"a network behind a function, here or at a peer"`
	Via    netip.Addr   `yaml:"via" default:"required" doc:"an address of that function"`
}

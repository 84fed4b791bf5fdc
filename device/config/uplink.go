package config

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/falcon-vnic/vnic/device/security/room"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
)

// Uplink backends.
const (
	BackendNative = "native" // TAP opened with the kernel's own ioctls, virtio-net header
	BackendWater  = "water"  // TAP opened by songgao/water, plain frames
	BackendMemory = "memory" // an in-process Ethernet segment, no kernel device
)

// Superframes of an uplink.
const (
	SuperframesAuto = "auto" // if the kernel and the backend support them
	SuperframesOff  = "off"
)

// Probes of the paths to peers (package pathmtu).
const (
	ProbeMTUAuto = "auto"
	ProbeMTUOff  = "off" // the network is trusted to carry packets of uplink.mtu
)

// Kinds of uplink.
const (
	UplinkTAP = "tap" // an Ethernet port, on which the NIC has an address of its own
	UplinkUDP = "udp" // UDP at an address of the host
)

// Uplink is the way to the other NICs.
type Uplink struct {
	Type        string         `yaml:"type" use:"tap or udp" doc:"tap: an Ethernet port on which the NIC has an address of its own; udp: UDP at an address of the host, for networks that carry nothing else, and without root"`
	Listen      netip.AddrPort `yaml:"listen" default:"required for udp" doc:"udp: address of the host, or 0.0.0.0 or [::] for all, and port at which peers reach the NIC; ports below 1024 are for root"`
	Backend     string         `yaml:"backend" use:"native, water or memory" doc:"tap: native, a TAP by the kernel's ioctls; water, a TAP by songgao/water; memory, an Ethernet in this process, for tests"`
	Name        string         `yaml:"name" use:"at most 15 characters" default:"required for tap" doc:"tap: network device to make"`
	Bridge      string         `yaml:"bridge" default:"none" doc:"tap: bridge to join"`
	MTU         int            `yaml:"mtu" use:"576 to 65521" default:"9000; udp: 1500" doc:"bytes of IP packet; rdma.mtu and 176 bytes of headers must fit (20 more for IPv6 outside)"`
	MAC         MAC            `yaml:"mac" default:"from cm.name" doc:"tap: MAC address"`
	Speed       Rate           `yaml:"speed" use:"10M to 4T" doc:"bits per second that guests are told their ports have; it limits nothing"`
	Superframes string         `yaml:"superframes" use:"auto or off" doc:"auto: packets of one size to one peer cross the kernel as one superframe (native, Linux 6.2 and newer; udp, Linux 5.0 and newer); off: one by one"`
	ProbeMTU    string         `yaml:"probe_mtu" use:"auto or off" doc:"auto: find out what the network carries to each peer, and keep to it; off: take uplink.mtu for that"`
	Queues      int            `yaml:"queues" use:"1 to 16" doc:"tap: queues of the device (native), at least one for each of nic.shards: with several, senders on different processors do not wait for each other"`
	Address     netip.Prefix   `yaml:"address" default:"required for tap" doc:"tap: the NIC's own underlay address with its prefix length, IPv4 or IPv6; not the host kernel's"`
	Gateway     netip.Addr     `yaml:"gateway" default:"none" doc:"tap: router to peers outside that network"`
	Neighbours  []Neighbour    `yaml:"neighbours" doc:"neighbours on the uplink's network whose MAC addresses are fixed"`
	Keepalive   time.Duration  `yaml:"keepalive" use:"0s, or 1s to 10m" doc:"udp: for a NIC behind NAT, time between two signs of life to each peer; everything is sent from the port of listen then; 0s: none"`
	Impair      Impair         `yaml:"impair" doc:"a bad network, for tests; vnic inject link changes it while the NIC runs"`
}

// Neighbour is a neighbour on the uplink's network with a fixed MAC: no ARP or neighbour discovery
// message changes it.
type Neighbour struct {
	Address netip.Addr `yaml:"address" default:"required" doc:"the neighbour whose MAC address is fixed: the NIC does not ask for it, and no message changes it"`
	MAC     MAC        `yaml:"mac" default:"required" doc:"its MAC address"`
}

// Own returns the address in outer headers that is this NIC's.
func (u *Uplink) Own() netip.Addr {
	if u.Type == UplinkUDP {
		return u.Listen.Addr()
	}
	return u.Address.Addr()
}

// Described returns the NIC's place on the uplink, for people.
func (u *Uplink) Described() string {
	if u.Type == UplinkUDP {
		return u.Listen.String()
	}
	return u.Address.String()
}

// Place is where a NIC receives sealed packets: an address, and a UDP port if it is not the usual
// one.
type Place struct{ netip.AddrPort }

// UnmarshalText reads 10.0.0.2, 10.0.0.2:2000, fd00::2 or [fd00::2]:2000.
func (p *Place) UnmarshalText(b []byte) error {
	s := string(b)
	if s == "" { // as it is written when it is unset
		*p = Place{}
		return nil
	}
	if a, err := netip.ParseAddr(s); err == nil && !a.Is4In6() && a.Zone() == "" {
		p.AddrPort = netip.AddrPortFrom(a, underlay.SealedPort)
		return nil
	}
	at, err := netip.ParseAddrPort(s)
	switch {
	case err != nil || at.Addr().Is4In6() || at.Addr().Zone() != "":
		return fmt.Errorf("%q is not an IPv4 or IPv6 address; write it as 10.0.0.2, or with a port as 10.0.0.2:2000", b)
	case at.Port() == 0:
		return fmt.Errorf("%q has the port 0; use a port from 1 to 65535", b)
	}
	p.AddrPort = at
	return nil
}

// Anywhere reports whether a NIC has no place of its own: it is where its packets come from.
func (p Place) Anywhere() bool { return p.Addr().IsUnspecified() }

// String writes the place as UnmarshalText reads it.
func (p Place) String() string {
	if p.Port() == underlay.SealedPort {
		return p.Addr().String()
	}
	return p.AddrPort.String()
}

func (u *Uplink) setDefaults(nic string) {
	set(&u.Type, UplinkTAP)
	set(&u.Speed, DefaultUplinkSpeed)
	set(&u.Superframes, SuperframesAuto)
	set(&u.ProbeMTU, ProbeMTUAuto)
	u.Impair.RX.SetDefaults()
	u.Impair.TX.SetDefaults()
	if u.Type == UplinkUDP {
		set(&u.MTU, DefaultSocketMTU)
		return
	}
	set(&u.Backend, BackendNative)
	set(&u.MTU, DefaultUplinkMTU)
	set(&u.Queues, 1)
	if u.Backend == BackendMemory {
		set(&u.Name, "uplink")
	}
	if u.MAC.IsZero() {
		u.MAC = UplinkMAC(nic)
	}
}

func (u *Uplink) check(r *report) {
	oneOf(r, "uplink.type", u.Type, UplinkTAP, UplinkUDP)
	oneOf(r, "uplink.superframes", u.Superframes, SuperframesAuto, SuperframesOff)
	oneOf(r, "uplink.probe_mtu", u.ProbeMTU, ProbeMTUAuto, ProbeMTUOff)
	if u.Speed < minUplinkSpeed || u.Speed > maxUplinkSpeed {
		r.add("uplink.speed", fmt.Sprintf("%s is out of range", u.Speed), fmt.Sprintf("use %s to %s", minUplinkSpeed, maxUplinkSpeed))
	}
	if u.Own().Is6() && u.MTU < minIPv6MTU {
		r.add("uplink.mtu", fmt.Sprintf("%d is too small for the IPv6 address %s", u.MTU, u.Own()), fmt.Sprintf("use %d bytes or more", minIPv6MTU))
	} else if u.MTU < minUplinkMTU || u.MTU > maxUplinkMTU {
		r.add("uplink.mtu", fmt.Sprintf("%d is out of range", u.MTU), fmt.Sprintf("use %d to %d bytes", minUplinkMTU, maxUplinkMTU))
	}
	u.Impair.RX.check(r, "uplink.impair.rx")
	u.Impair.TX.check(r, "uplink.impair.tx")
	switch u.Type {
	case UplinkTAP:
		u.checkTAP(r)
	case UplinkUDP:
		u.checkUDP(r)
	}
}

// checkUDP checks an uplink on the host's UDP, and that it has none of a TAP's keys.
func (u *Uplink) checkUDP(r *report) {
	switch a := u.Listen.Addr(); {
	case !u.Listen.IsValid():
		r.add("uplink.listen", "missing", "give an address of the host and a port, as 10.0.0.1:1000")
	case a.Is4In6() || a.Zone() != "" || a.IsMulticast() || a == broadcast:
		r.add("uplink.listen", fmt.Sprintf("%s cannot be a host's address", a), "write one of this host's own addresses, as 10.0.0.1:1000, or 0.0.0.0:1000 for all")
	}
	if u.Keepalive != 0 && (u.Keepalive < minKeepalive || u.Keepalive > maxKeepalive) {
		r.add("uplink.keepalive", fmt.Sprintf("%s is out of range", u.Keepalive), fmt.Sprintf("use %s to %s, or 0s for none; NATs forget a mapping after 30s or more", minKeepalive, maxKeepalive))
	}
	for _, k := range []struct {
		key   string
		given bool
	}{
		{"backend", u.Backend != ""},
		{"name", u.Name != ""},
		{"bridge", u.Bridge != ""},
		{"mac", !u.MAC.IsZero()},
		{"queues", u.Queues != 0},
		{"address", u.Address.IsValid()},
		{"gateway", u.Gateway.IsValid()},
		{"neighbours", len(u.Neighbours) > 0},
	} {
		if k.given {
			r.add("uplink."+k.key, "has no meaning for type udp: the host's own network carries the packets", "leave it out")
		}
	}
}

func (u *Uplink) checkTAP(r *report) {
	oneOf(r, "uplink.backend", u.Backend, BackendNative, BackendWater, BackendMemory)
	switch {
	case u.Queues < 1 || u.Queues > maxQueues:
		r.add("uplink.queues", fmt.Sprintf("%d is out of range", u.Queues), fmt.Sprintf("use 1 to %d", maxQueues))
	case u.Queues > 1 && u.Backend != BackendNative:
		r.add("uplink.queues", fmt.Sprintf("%d queues with backend %s, which has one", u.Queues, u.Backend), "leave it out, or use backend native")
	}
	if u.Name == "" {
		r.add("uplink.name", "missing", "name the TAP device to make, as vnic1")
	} else {
		checkIfName(r, "uplink.name", u.Name)
	}
	if u.Bridge != "" {
		checkIfName(r, "uplink.bridge", u.Bridge)
		if u.Bridge == u.Name {
			r.add("uplink.bridge", fmt.Sprintf("%q is the uplink itself", u.Bridge), "name the bridge the uplink is to join")
		}
		if u.Backend == BackendMemory {
			r.add("uplink.bridge", "an uplink in memory cannot join a bridge", "leave it out, or use backend native")
		}
	}
	if u.Listen.IsValid() {
		r.add("uplink.listen", "has no meaning for type tap", "leave it out, or write type udp")
	}
	if u.Keepalive != 0 {
		r.add("uplink.keepalive", "has no meaning for type tap", "leave it out, or write type udp")
	}
	switch {
	case !u.Address.IsValid():
		r.add("uplink.address", "missing", "give the NIC its underlay address, as 10.0.0.1/24 or fd00::1/64")
	case !usable(u.Address.Addr()):
		r.add("uplink.address", fmt.Sprintf("%s cannot be a NIC's address", u.Address), "write a host's own address, as 10.0.0.1/24")
	}
	if u.Gateway.IsValid() && u.Address.IsValid() {
		if !u.Address.Contains(u.Gateway) {
			r.add("uplink.gateway", fmt.Sprintf("%s is not in %s", u.Gateway, u.Address.Masked()), "name a router on the uplink's own network")
		} else if u.Gateway == u.Address.Addr() {
			r.add("uplink.gateway", fmt.Sprintf("%s is the NIC's own address", u.Gateway), "name the router, or leave it out")
		}
	}
	u.checkNeighbours(r)
}

// checkPeer checks where a peer receives. It reports whether that can be the place of one.
func (u *Uplink) checkPeer(r *report, path string, at Place) bool {
	own, a := u.Own(), at.Addr()
	switch {
	case !at.IsValid():
		r.add(path, "missing", "write the peer's uplink.address without the prefix length, or its uplink.listen")
	case u.Type == UplinkTAP && (!usable(a) || a == own),
		u.Type == UplinkUDP && (a.IsMulticast() || a == broadcast || at.AddrPort == u.Listen):
		r.add(path, fmt.Sprintf("%s cannot be the peer's address", at), "write the peer's uplink.address without the prefix length, or its uplink.listen")
	case own.IsValid() && own.Is4() != a.Is4():
		key := "uplink.address"
		if u.Type == UplinkUDP {
			key = "uplink.listen"
		}
		r.add(path, fmt.Sprintf("%s and %s %s are of different IP versions", at, key, u.Described()), "NICs reach each other over one version of IP; tenants' addresses are free")
	case u.Type == UplinkTAP && u.Address.IsValid() && !u.Address.Contains(a) && !u.Gateway.IsValid():
		r.add(path, fmt.Sprintf("%s is outside %s and uplink.gateway is not set", at, u.Address.Masked()), "correct the address or name a gateway")
	default:
		return true
	}
	return false
}

// maxNeighbours is half of the NIC's neighbour table, so that there is room for neighbours that are
// resolved.
const maxNeighbours = 256

func (u *Uplink) checkNeighbours(r *report) {
	if n := len(u.Neighbours); n > maxNeighbours {
		r.add("uplink.neighbours", fmt.Sprintf("%d are listed", n), fmt.Sprintf("list at most %d", maxNeighbours))
	}
	seen := map[netip.Addr]bool{}
	for i, n := range u.Neighbours {
		path := fmt.Sprintf("uplink.neighbours[%d]", i)
		switch {
		case !n.Address.IsValid():
			r.add(path+".address", "missing", "write a peer's uplink.address without the prefix length, or the gateway's")
		case u.Address.IsValid() && (!u.Address.Contains(n.Address) || n.Address == u.Address.Addr() || !usable(n.Address)):
			r.add(path+".address", fmt.Sprintf("%s is not the address of another host in %s", n.Address, u.Address.Masked()), "list peers and the gateway of the uplink's own network")
		case seen[n.Address]:
			r.add(path+".address", fmt.Sprintf("%s is listed twice", n.Address), "remove one")
		}
		seen[n.Address] = true
		if n.MAC.IsZero() || n.MAC[0]&1 != 0 {
			r.add(path+".mac", fmt.Sprintf("%s is not a unicast MAC address", n.MAC), "write its MAC address, as 02:56:4e:ff:00:02")
		}
	}
}

// overhead returns the bytes around an RDMA packet's data that count for the uplink's MTU: outer IP
// and UDP, the seal, Falcon Push Data 28, and the longest ULP headers in front of data, 40. Sealed
// packets may have IPv6 addresses even if all functions have IPv4 ones: drivers add their
// link-local GIDs.
func (c *Config) overhead() int {
	seal := room.Tunnel(true)
	if c.PSP.Mode == PSPTransport {
		seal = room.Transport
	}
	return underlay.HeaderLen(c.Uplink.Own()) + seal + 28 + wire.MaxDataHeaderLen
}

// RDMADataFor returns how many bytes of data an RDMA packet may have if the network carries mtu bytes
// of outer IP packet.
func (c *Config) RDMADataFor(mtu int) int { return mtu - c.overhead() }

// SealedOverhead returns the bytes around a port's IP packet that count for the uplink's MTU: outer
// IP and UDP, and the seal.
func (c *Config) SealedOverhead() int {
	return underlay.HeaderLen(c.Uplink.Own()) + room.Plain
}

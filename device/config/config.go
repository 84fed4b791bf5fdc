package config

import (
	"net/netip"
	"time"

	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// Config describes one NIC: its functions, how guests reach them, its uplink
// and the NICs it talks to.
type Config struct {
	NIC       NIC        `yaml:"nic"`
	Log       Log        `yaml:"log"`
	Control   string     `yaml:"control"` // path of the control API's unix socket; empty: none
	Uplink    Uplink     `yaml:"uplink"`
	RDMA      RDMA       `yaml:"rdma"`
	Falcon    Falcon     `yaml:"falcon"`
	PSP       PSP        `yaml:"psp"`
	CM        CM         `yaml:"cm"`
	Peers     []Peer     `yaml:"peers"`
	Tenants   []Tenant   `yaml:"tenants"`
	Credits   CreditTree `yaml:"credits"`
	Metrics   Metrics    `yaml:"metrics"`
	Functions []PF       `yaml:"functions"`
	Attach    []Attach   `yaml:"attach"`
	Capture   *Capture   `yaml:"capture"`
}

// Metrics configures the Prometheus endpoint.
type Metrics struct {
	Listen netip.AddrPort `yaml:"listen"` // TCP address of GET /metrics; absent: no endpoint
	Hosts  []string       `yaml:"hosts"`  // host names accepted in requests, besides addresses, localhost and the machine's name
}

// NIC describes the device. Host is the first byte of every function's number and must differ
// between NICs that communicate.
type NIC struct {
	Host uint8  `yaml:"host" use:"1 to 255"` // 1..255
	Name string `yaml:"name"`                // for people; default nic<host>

	// Strict also reports harmless errors of drivers: reserved bytes and areas that must be zero
	// but are not.
	Strict bool `yaml:"strict"`
	// Spin is the longest time that the NIC's thread polls for work before it sleeps, if polling
	// was worthwhile recently; 0: never.
	Spin *time.Duration `yaml:"spin"`
	// Shards is the number of threads that do the NIC's work. Each function belongs to one of them
	// for good. 0: one for each two processors, at least one.
	Shards int `yaml:"shards" use:"1 to 16"`
	// CPU lists the processors to which the NIC's threads are bound, as the kernel numbers them:
	// one for each shard, in order. Shards beyond the list run on any processor.
	CPU []int `yaml:"cpu" use:"0 to 1023"`
	// Watchdog is the time without a turn of the NIC's thread after which vnic run replaces the
	// worker; 0: never.
	Watchdog *time.Duration `yaml:"watchdog"`
	// GuestMemory is how much guest memory each attachment, and each port in a guest's memory, may
	// map. A vfio-user function maps all of its guest's memory.
	GuestMemory Size `yaml:"guest_memory"`
}

// Log sets the level of the log (debug, info, warn or error) and its format.
type Log struct {
	Level  string `yaml:"level"`
	Format string `yaml:"format"`
}

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

// Uplink is the Ethernet port towards the other NICs.
type Uplink struct {
	Backend     string       `yaml:"backend"`
	Name        string       `yaml:"name"`                   // of the network device, at most 15 characters
	Bridge      string       `yaml:"bridge"`                 // bridge to join; empty: none
	MTU         int          `yaml:"mtu" use:"576 to 65521"` // bytes of IP packet, 576..65521
	MAC         MAC          `yaml:"mac"`                    // derived from the host number when absent
	Speed       Rate         `yaml:"speed"`                  // bits per second; the speed that guests see at their ports
	Superframes string       `yaml:"superframes"`            // packets of one size to one peer pass the kernel together: auto or off
	Queues      int          `yaml:"queues" use:"1 to 16"`   // of the TAP, 1..16
	Address     netip.Prefix `yaml:"address"`                // the NIC's own underlay address, IPv4 or IPv6
	Gateway     netip.Addr   `yaml:"gateway"`                // for peers outside Address's network
	Neighbours  []Neighbour  `yaml:"neighbours"`             // stations of Address's network whose MAC addresses are configured, not resolved
	Impair      Impair       `yaml:"impair"`                 // faults to inject, per direction
}

// Neighbour is a station of the uplink's network with a fixed MAC: no ARP or neighbour discovery
// message changes it.
type Neighbour struct {
	Address netip.Addr `yaml:"address"`
	MAC     MAC        `yaml:"mac"`
}

// RDMA configures the RDMA engine's packets and transports.
type RDMA struct {
	MTU       int    `yaml:"mtu" use:"256, 512, 1024, 2048 or 4096"` // path MTU in bytes of data: 256, 512, 1024, 2048 or 4096
	Transport string `yaml:"transport"`                              // transport to peers: auto, falcon or roce

	// Congestion names the congestion control of RoCEv2: an algorithm of package cc.
	Congestion string `yaml:"congestion"`
}

// Values of rdma.transport.
const (
	TransportAuto   = "auto"   // Falcon to functions that the NIC knows, RoCEv2 to other addresses in the networks of ports
	TransportFalcon = "falcon" // Falcon only
	TransportRoCE   = "roce"   // RoCEv2 only, between functions with ports
)

// PSP sets the encryption of packets between NICs.
type PSP struct {
	Mode         string        `yaml:"mode"`                 // encapsulation of Falcon packets: tunnel or transport; the same at all NICs of a fabric
	Version      uint8         `yaml:"version" use:"0 to 3"` // 0 AES-GCM-128, 1 AES-GCM-256, 2 AES-GMAC-128, 3 AES-GMAC-256
	ReplayMargin time.Duration `yaml:"replay_margin"`        // how much older a packet may be than the newest one received

	// RotateEvery is the time between two rotations of the master key; 0: only on request. After
	// Parse it is not nil.
	RotateEvery *time.Duration `yaml:"rotate_every"`

	// KeyLog is a file to which all keys are written, for decrypting captures; empty: none.
	KeyLog string `yaml:"keylog"`
}

// PSP modes.
const (
	PSPTunnel    = "tunnel"    // with the functions' addresses and the tenant's cookie inside
	PSPTransport = "transport" // Falcon directly in PSP, without inner IP and cookie; the key alone names the tenant
)

// CM is the link over which NICs agree on connections and keys: mutual TLS
// over the host's own network.
type CM struct {
	Listen   netip.AddrPort `yaml:"listen"`
	Identity string         `yaml:"identity"` // folder made by "vnic keys init"
}

// Peer is another NIC, and what it may do.
type Peer struct {
	Host      uint8          `yaml:"host" use:"1 to 255"`           // its nic.host
	Underlay  netip.Addr     `yaml:"underlay"`                      // its uplink.address
	CM        netip.AddrPort `yaml:"cm"`                            // its cm.listen
	Identity  string         `yaml:"identity"`                      // URI its certificate must carry
	Tenants   []uint32       `yaml:"tenants" use:"1 to 4294967295"` // tenants that it may speak for
	Functions []PeerFunction `yaml:"functions"`                     // its functions; needed only where several peers share a tenant
}

// PeerFunction locates a tenant's address at a peer.
type PeerFunction struct {
	Tenant  uint32     `yaml:"tenant" use:"1 to 4294967295"`
	Address netip.Addr `yaml:"address"`
}

// Function holds the settings that PFs and VFs have in common.
type Function struct {
	MAC       MAC        `yaml:"mac"`                                         // derived from <host, PF, VF> when absent
	Tenant    uint32     `yaml:"tenant" use:"1 to 4294967295, or 0 for none"` // virtual network, 1..2^32-1; 0: the function is not assigned
	Address   netip.Addr `yaml:"address"`                                     // the function's IPv4 or IPv6 address inside the tenant
	Guest     *Guest     `yaml:"guest"`                                       // the guest that may drive it; absent: none
	DMAWindow *Window    `yaml:"dma_window"`                                  // device addresses that it may access; absent: all of its guest's memory
	Limits    Limits     `yaml:"limits"`
	Credits   Credits    `yaml:"credits"`   // limit
	Guarantee Credits    `yaml:"guarantee"` // the part of the limit that is reserved for it

	// Enabled says whether the function is enabled at the start; a VF may be enabled later. By
	// default a function with a tenant is. After Parse it is not nil.
	Enabled *bool `yaml:"enabled"`

	// Settings with the same names in `ip link set … vf`. SpoofCheck drops packets that are not
	// from the function's own MAC and addresses; after Parse it is not nil. A trusted function may
	// use any MAC, and a trusted PF may give its VFs any tenant.
	MaxTxRate  uint64    `yaml:"max_tx_rate"`           // Mbit/s; 0: no limit
	Weight     uint8     `yaml:"weight" use:"1 to 255"` // weight among functions; 0: 1
	Trust      bool      `yaml:"trust"`
	SpoofCheck *bool     `yaml:"spoofcheck"`
	Link       pfvf.Link `yaml:"link"` // auto, enable or disable

	Port *Port `yaml:"port"` // its Ethernet port; none when absent

	Shard *int `yaml:"shard" use:"0 to 15"` // shard that runs it, from 0; nil: Config.Homes assigns one
}

// PF is a physical function and its virtual functions.
type PF struct {
	PF uint8 `yaml:"pf" use:"0 to 15"` // 0..15
	Function
	VFCount int  `yaml:"vf_count" use:"0 to 4095"` // highest VF number that may be enabled; default 4
	VFs     []VF `yaml:"vfs"`
}

// VF is a virtual function.
type VF struct {
	VF uint16 `yaml:"vf" use:"1 to 4095"` // 1..4095
	Function
}

// Guest identifies who may drive a function: the guest with a vsock context id, or the client of a
// named unix attachment.
type Guest struct {
	CID  uint32 `yaml:"cid" use:"3 to 4294967294"`
	Unix string `yaml:"unix"`
}

// Window is a range of device addresses.
type Window struct {
	Address Size `yaml:"address"`
	Size    Size `yaml:"size"`
}

// Limits bounds the objects that one function may create. Zero means the default.
type Limits struct {
	Quotas
	QPEntries  uint32 `yaml:"qp_entries" use:"a power of two, 1 to 262144"`
	CQEntries  uint32 `yaml:"cq_entries" use:"a power of two, 1 to 262144"`
	ReadAtomic uint32 `yaml:"read_atomic" use:"1 to 128"` // outstanding READ and atomic requests per QP
	PageLists  Size   `yaml:"page_lists"`                 // memory of the NIC for the page lists of all MRs
}

// Credits is an amount of the NIC's packet resources: the six counters of
// Falcon §8.2.3 and the two pools for requests from the network. Zero means the
// default.
type Credits struct {
	RequestPacketTx uint32 `yaml:"request_packet_tx"`
	RequestBufferTx uint32 `yaml:"request_buffer_tx"`
	RequestPacketRx uint32 `yaml:"request_packet_rx"`
	RequestBufferRx uint32 `yaml:"request_buffer_rx"`
	DataPacketTx    uint32 `yaml:"data_packet_tx"`
	DataBufferTx    uint32 `yaml:"data_buffer_tx"`

	// Requests from the network and their waiting payload (Falcon §8.2.4).
	NetworkPacketRx uint32 `yaml:"network_packet_rx"`
	NetworkBufferRx uint32 `yaml:"network_buffer_rx"`
}

// CreditTree holds the limits for all functions together, and for one connection. Zero means the
// default; for a connection that is a share of its function's limit.
type CreditTree struct {
	NIC        Credits `yaml:"nic"`
	Host       Credits `yaml:"host"`
	Connection Credits `yaml:"connection"`
}

// Kinds of attachment.
const (
	AttachVhostUser = "vhost-user" // the NIC's vhost-user-vsock device for one guest
	AttachUnix      = "unix"       // a unix socket for local clients that pass their memory
	AttachVsock     = "vsock"      // the kernel's vsock, guest memory from a file
	AttachVfioUser  = "vfio-user"  // functions as PCI devices of one guest's QEMU
)

// Attach is a way for guests to reach this NIC.
type Attach struct {
	Type   string `yaml:"type"`
	Name   string `yaml:"name"`                      // unix: the name that functions refer to; default the socket's file name without suffix
	Socket string `yaml:"socket"`                    // vhost-user, unix; vfio-user: prefix of the functions' sockets (WindowSocket)
	CID    uint32 `yaml:"cid" use:"3 to 4294967294"` // vhost-user, vfio-user: the guest's context id, 3 or above
	// Windows gives each function of a vhost-user guest an ivshmem device for its doorbells, on the
	// socket named by WindowSocket.
	Windows bool   `yaml:"windows"`
	Port    uint32 `yaml:"port"` // vsock: port to listen on; default 7000
	RAM     []RAM  `yaml:"ram"`  // vsock: the memory of each guest
	PCI     *PCI   `yaml:"pci"`  // vfio-user: how the devices look; nil before Parse
}

// PCI says how functions look to a guest as PCI devices.
type PCI struct {
	Vendor          *PCIID `yaml:"vendor"`
	Device          *PCIID `yaml:"device"`
	SubsystemVendor *PCIID `yaml:"subsystem_vendor"`
	SubsystemDevice *PCIID `yaml:"subsystem_device"`
	Interrupts      string `yaml:"interrupts"` // msix or msi
}

// Interrupts of PCI devices.
const (
	PCIMSIX = "msix"
	PCIMSI  = "msi" // QEMU 11.1 crashes when a device with MSI-X is unplugged
)

// Default ids of functions: those that QEMU reserves for devices that are not registered.
const (
	DefaultPCIVendor PCIID = 0x1af4
	DefaultPCIDevice PCIID = 0x10f0
)

// RAM is the memory of one guest: a file that QEMU shares, and its place in the guest's address
// space.
type RAM struct {
	CID    uint32     `yaml:"cid" use:"1, or 3 to 4294967295"`
	File   string     `yaml:"file"`
	Layout []RAMRange `yaml:"layout"`
}

// RAMRange maps a range of guest-physical addresses to a range of the file.
type RAMRange struct {
	Address Size `yaml:"address"`
	Size    Size `yaml:"size"`
	Offset  Size `yaml:"offset"`
}

// Capture modes.
const (
	CaptureSealed = "sealed" // frames as on the uplink
	CaptureClear  = "clear"  // packets after opening, before sealing
	CaptureBoth   = "both"
)

// Capture makes the NIC write packets to a pcapng file from its start.
type Capture struct {
	File string `yaml:"file"`
	Mode string `yaml:"mode"`
}

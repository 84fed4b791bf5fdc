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

// Metrics sets where Prometheus may ask.
type Metrics struct {
	Listen netip.AddrPort `yaml:"listen"` // TCP address of GET /metrics; absent: nobody may
	Hosts  []string       `yaml:"hosts"`  // names by which it is asked, besides addresses, localhost and the machine's name
}

// NIC names the device. Host is the first byte of every function's number and
// must differ between NICs that talk to each other.
type NIC struct {
	Host uint8  `yaml:"host" use:"1 to 255"` // 1..255
	Name string `yaml:"name"`                // for people; default nic<host>

	// Strict looks for what drivers do wrong without harm as well: reserved bytes and areas that
	// have to be zero.
	Strict bool `yaml:"strict"`
	// Spin is how long the NIC's thread looks for work at most before it sleeps,
	// where looking paid lately; 0: never.
	Spin *time.Duration `yaml:"spin"`
	// Shards is how many threads carry the NIC's work. Each has functions of its own, which stay
	// with it. 0: one for each two processors, at least one.
	Shards int `yaml:"shards" use:"1 to 16"`
	// CPU lists the processors that the NIC's threads keep to, as the kernel counts them: one for
	// each shard, in order. Shards beyond the list run on any.
	CPU []int `yaml:"cpu" use:"0 to 1023"`
	// Watchdog is for how long the NIC's thread may not turn before vnic run replaces
	// the worker; 0: for ever.
	Watchdog *time.Duration `yaml:"watchdog"`
	// GuestMemory is how much of guests' memory each attachment, and each port in a guest's memory,
	// may have mapped. A function by vfio-user maps all of its guest's memory.
	GuestMemory Size `yaml:"guest_memory"`
}

// Log sets how much is written to the log (debug, info, warn or error) and how.
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
	SuperframesAuto = "auto" // where the kernel and the backend can
	SuperframesOff  = "off"
)

// Uplink is the Ethernet port towards the other NICs.
type Uplink struct {
	Backend     string       `yaml:"backend"`
	Name        string       `yaml:"name"`                   // of the network device, at most 15 characters
	Bridge      string       `yaml:"bridge"`                 // bridge to join; empty: none
	MTU         int          `yaml:"mtu" use:"576 to 65521"` // bytes of IP packet, 576..65521
	MAC         MAC          `yaml:"mac"`                    // derived from the host number when absent
	Speed       Rate         `yaml:"speed"`                  // bits per second; what guests are told that their ports have
	Superframes string       `yaml:"superframes"`            // packets of one size to one peer cross the kernel together: auto or off
	Queues      int          `yaml:"queues" use:"1 to 16"`   // of the TAP, 1..16
	Address     netip.Prefix `yaml:"address"`                // the NIC's own underlay address, IPv4 or IPv6
	Gateway     netip.Addr   `yaml:"gateway"`                // for peers outside Address's network
	Neighbours  []Neighbour  `yaml:"neighbours"`             // stations of Address's network whose MAC addresses are not asked for
	Impair      Impair       `yaml:"impair"`                 // what is to go wrong, per direction
}

// Neighbour is a station of the uplink's network that is known for good: no ARP or neighbour
// discovery message moves it.
type Neighbour struct {
	Address netip.Addr `yaml:"address"`
	MAC     MAC        `yaml:"mac"`
}

// RDMA sets what the RDMA engine puts in one packet.
type RDMA struct {
	MTU       int    `yaml:"mtu" use:"256, 512, 1024, 2048 or 4096"` // path MTU in bytes of data: 256, 512, 1024, 2048 or 4096
	Transport string `yaml:"transport"`                              // what reaches peers: auto, falcon or roce

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
	Mode         string        `yaml:"mode"`                 // how Falcon packets are carried: tunnel or transport; the same at all NICs of a fabric
	Version      uint8         `yaml:"version" use:"0 to 3"` // 0 AES-GCM-128, 1 AES-GCM-256, 2 AES-GMAC-128, 3 AES-GMAC-256
	ReplayMargin time.Duration `yaml:"replay_margin"`        // how far a packet's time may lie behind the newest seen

	// RotateEvery is the time between two rotations of the master key; 0: only
	// when asked for. Parse makes it never nil.
	RotateEvery *time.Duration `yaml:"rotate_every"`

	// KeyLog names a file to write all keys to, for decrypting captures; empty:
	// none.
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

// Peer is another NIC and what it may ask of us.
type Peer struct {
	Host      uint8          `yaml:"host" use:"1 to 255"`           // its nic.host
	Underlay  netip.Addr     `yaml:"underlay"`                      // its uplink.address
	CM        netip.AddrPort `yaml:"cm"`                            // its cm.listen
	Identity  string         `yaml:"identity"`                      // URI its certificate must carry
	Tenants   []uint32       `yaml:"tenants" use:"1 to 4294967295"` // tenants it may speak for
	Functions []PeerFunction `yaml:"functions"`                     // which functions it has; needed only where several peers share a tenant
}

// PeerFunction locates a tenant's address at a peer.
type PeerFunction struct {
	Tenant  uint32     `yaml:"tenant" use:"1 to 4294967295"`
	Address netip.Addr `yaml:"address"`
}

// Function holds what a PF and a VF have in common.
type Function struct {
	MAC       MAC        `yaml:"mac"`                                         // derived from <host, PF, VF> when absent
	Tenant    uint32     `yaml:"tenant" use:"1 to 4294967295, or 0 for none"` // virtual network, 1..2^32-1; 0: the function is not assigned
	Address   netip.Addr `yaml:"address"`                                     // the function's IPv4 or IPv6 address inside the tenant
	Guest     *Guest     `yaml:"guest"`                                       // who may drive it; nobody when absent
	DMAWindow *Window    `yaml:"dma_window"`                                  // device addresses it may reach; all of its guest's memory when absent
	Limits    Limits     `yaml:"limits"`
	Credits   Credits    `yaml:"credits"`   // the most it may hold
	Guarantee Credits    `yaml:"guarantee"` // of that, what is set aside for it alone

	// Enabled says whether the function is there from the start; a VF may be
	// enabled later. The default is whether it has a tenant. Parse makes it never
	// nil.
	Enabled *bool `yaml:"enabled"`

	// What `ip link set … vf` calls by these names. SpoofCheck drops what does not come from the
	// function's own MAC and addresses; Parse makes it never nil. A trusted function may use any
	// MAC, and a trusted PF gives its VFs any tenant.
	MaxTxRate  uint64    `yaml:"max_tx_rate"`           // Mbit/s; 0: no limit
	Weight     uint8     `yaml:"weight" use:"1 to 255"` // its share of the NIC beside other functions; 0: 1
	Trust      bool      `yaml:"trust"`
	SpoofCheck *bool     `yaml:"spoofcheck"`
	Link       pfvf.Link `yaml:"link"` // auto, enable or disable

	Port *Port `yaml:"port"` // its Ethernet port; none when absent

	Shard *int `yaml:"shard" use:"0 to 15"` // that carries it, from 0; nil: Config.ShardOf spreads them
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

// Guest names who may drive a function: the guest with a vsock context id, or
// whoever comes in over a named unix attachment.
type Guest struct {
	CID  uint32 `yaml:"cid" use:"3 to 4294967294"`
	Unix string `yaml:"unix"`
}

// Window is a range of device addresses.
type Window struct {
	Address Size `yaml:"address"`
	Size    Size `yaml:"size"`
}

// Limits bounds what one function may create. Zero means the default.
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

// CreditTree bounds what all functions hold together, and what one connection holds. Zero means the
// default, which for a connection is a share of what its function may hold.
type CreditTree struct {
	NIC        Credits `yaml:"nic"`
	Host       Credits `yaml:"host"`
	Connection Credits `yaml:"connection"`
}

// Kinds of attachment.
const (
	AttachVhostUser = "vhost-user" // our own vhost-user-vsock device for one guest
	AttachUnix      = "unix"       // a unix socket for bare clients with passed memory
	AttachVsock     = "vsock"      // the kernel's vsock, guest memory from a file
	AttachVfioUser  = "vfio-user"  // functions as PCI devices of one guest's QEMU
)

// Attach is one way for guests to reach this NIC.
type Attach struct {
	Type   string `yaml:"type"`
	Name   string `yaml:"name"`                      // unix: what functions refer to; default the socket's file name without suffix
	Socket string `yaml:"socket"`                    // vhost-user, unix; vfio-user: what WindowSocket makes the functions' of
	CID    uint32 `yaml:"cid" use:"3 to 4294967294"` // vhost-user, vfio-user: the guest's context id, 3 or above
	// Windows gives each function of a vhost-user guest an ivshmem device for its
	// doorbells, served on the socket that WindowSocket names.
	Windows bool   `yaml:"windows"`
	Port    uint32 `yaml:"port"` // vsock: port to listen on; default 7000
	RAM     []RAM  `yaml:"ram"`  // vsock: where each guest's memory lies
	PCI     *PCI   `yaml:"pci"`  // vfio-user: how the devices look; nil: as defaults say
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
	PCIMSI  = "msi" // QEMU 11.1 ends when a device with MSI-X is unplugged
)

// Ids of functions when nothing else is said: those that QEMU's authors have set aside for devices
// which are not registered.
const (
	DefaultPCIVendor PCIID = 0x1af4
	DefaultPCIDevice PCIID = 0x10f0
)

// RAM is the memory of one guest: a file that QEMU shares, and how the guest
// sees it.
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

// Capture writes packets to a pcapng file from the start.
type Capture struct {
	File string `yaml:"file"`
	Mode string `yaml:"mode"`
}

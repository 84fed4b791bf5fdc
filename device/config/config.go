package config

import (
	"net/netip"
	"time"

	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// Config describes one NIC: its functions, how guests reach them, its uplink
// and the NICs it talks to.
type Config struct {
	NIC       NIC        `yaml:"nic" doc:"the NIC itself"`
	Log       Log        `yaml:"log" doc:"the log on standard error"`
	Control   string     `yaml:"control" default:"none" doc:"unix socket of the control API, which vnic show asks"`
	Uplink    Uplink     `yaml:"uplink" doc:"the way to the other NICs"`
	RDMA      RDMA       `yaml:"rdma" doc:"packets and transports of RDMA"`
	Falcon    Falcon     `yaml:"falcon" doc:"timing and sizes of the transport"`
	PSP       PSP        `yaml:"psp" doc:"encryption of packets between NICs"`
	CM        CM         `yaml:"cm" doc:"how peers agree on connections and keys"`
	Peers     []Peer     `yaml:"peers" doc:"the other NICs, as far as directory does not tell of them"`
	Directory Directory  `yaml:"directory" doc:"where further peers come from (docs/fleet.md); peers alone when left out"`
	Tenants   []Tenant   `yaml:"tenants" doc:"virtual networks as the ports of their functions see them; a tenant that is left out has the defaults"`
	Credits   CreditTree `yaml:"credits" doc:"packet resources (Falcon §8.2.3), counted in packets and in cells of 128 bytes"`
	Metrics   Metrics    `yaml:"metrics" doc:"the endpoint for Prometheus"`
	Web       Web        `yaml:"web" doc:"the page that shows the NIC in a browser"`
	Functions []PF       `yaml:"functions" doc:"physical functions with their virtual functions"`
	Attach    []Attach   `yaml:"attach" doc:"how guests reach the NIC"`
	Capture   *Capture   `yaml:"capture" doc:"writes packets to a file from the start; leave it out for none"`
}

// Metrics configures the Prometheus endpoint.
type Metrics struct {
	Listen netip.AddrPort `yaml:"listen" default:"none" doc:"address of GET /metrics for Prometheus, without authentication"`
	Hosts  []string       `yaml:"hosts" doc:"names by which Prometheus may ask, besides addresses, localhost and the machine's own name"`
}

// Web configures the page that shows the NIC.
type Web struct {
	Listen netip.AddrPort `yaml:"listen" default:"none" doc:"address of the page, a loopback address; anybody who reaches it sees the NIC, without its keys and the tenants' data"`
	Hosts  []string       `yaml:"hosts" doc:"names by which browsers may ask, besides addresses, localhost and the machine's own name"`
	Public bool           `yaml:"public" use:"true or false" doc:"true: web.listen may be another address than loopback"`
}

// NIC describes the device. Host is the first byte of every function's number (Falcon §7.2), which
// other NICs may use as well: a NIC is known by the name in its certificate.
type NIC struct {
	Host uint8  `yaml:"host" use:"1 to 255" default:"required, or 1 with cm.name" doc:"the first byte of its functions' numbers; other NICs may have the same"`
	Name string `yaml:"name" default:"cm.name, after nic if it is a number" doc:"for people"`

	Strict      bool           `yaml:"strict" use:"true or false" doc:"also report drivers' harmless mistakes (vnic show violations)"`
	Spin        *time.Duration `yaml:"spin" use:"0s to 10ms" doc:"longest time that an event loop polls for work before it sleeps, if polling paid off lately; 0s: never"`
	Shards      int            `yaml:"shards" use:"1 to 16" default:"one for two processors" doc:"event loops that share the NIC's work; each function belongs to one of them"`
	CPU         []int          `yaml:"cpu" use:"0 to 1023" default:"any" doc:"processor of the event loop, or a list with one for each"`
	Watchdog    *time.Duration `yaml:"watchdog" use:"0s, or 1s and more" doc:"time without a turn of an event loop after which vnic run replaces the worker; 0s: never"`
	Recorder    *Recorder      `yaml:"recorder" doc:"keeps the last of what the NIC takes from outside, for vnic replay (docs/record.md); nothing is kept when left out"`
	GuestMemory Size           `yaml:"guest_memory" use:"1G to 65536G" doc:"guests' memory that each attachment, and each port in a guest's memory, may have mapped"`
}

// Recorder keeps the last of what the NIC takes from outside, in memory.
type Recorder struct {
	Size    Size   `yaml:"size" use:"8M to 4G" doc:"memory of it, taken at the start; when that is full, the oldest makes room, and what is saved has no beginning"`
	Payload string `yaml:"payload" use:"digest, whole or none" doc:"what is kept of what guests send, as of --record-payload"`
	Folder  string `yaml:"folder" default:"none" doc:"folder in which it is saved when a driver breaks a rule of docs/abi, a function gets a fault, or the worker ends by itself; without one only vnic record save saves it"`
}

// Log sets the level of the log (debug, info, warn or error) and its format.
type Log struct {
	Level  string `yaml:"level" use:"debug, info, warn or error" doc:"least level of the lines that are written"`
	Format string `yaml:"format" use:"text or json" doc:"json writes one object per line"`
}

// RDMA configures the RDMA engine's packets and transports.
type RDMA struct {
	MTU       int    `yaml:"mtu" use:"a power of two, 256 to 32768" default:"the largest that fits, up to 8192" doc:"data bytes of one packet over Falcon; drivers, RoCEv2 and datagrams know at most 4096"`
	Transport string `yaml:"transport" use:"auto, falcon, roce or iwarp" doc:"auto: Falcon to functions of vnic, RoCEv2 to other addresses in the networks of ports; falcon, roce: one of them alone; iwarp: iWARP, for what is connected by listen and connect"`

	Congestion string `yaml:"congestion" use:"dcqcn or window" doc:"congestion control of RoCEv2: dcqcn (a window for losses, a rate for notifications) or window (for both)"`

	CRC *bool `yaml:"crc" use:"true or false" doc:"over iWARP messages have checksums; false: only if the peer asks for them"`
}

// Values of rdma.transport, and of a function's transport. Those of one wire are its name (transport.Kind).
const (
	TransportAuto   = "auto"   // Falcon to functions that the NIC knows, RoCEv2 to other addresses in the networks of ports
	TransportFalcon = "falcon" // Falcon only
	TransportRoCE   = "roce"   // RoCEv2 only, between functions with ports
	TransportIWARP  = "iwarp"  // iWARP for what is connected by listen and connect, between functions with ports
)

// Transports holds the values of rdma.transport.
var Transports = [...]string{TransportAuto, TransportFalcon, TransportRoCE, TransportIWARP}

// PSP sets the encryption of packets between NICs.
type PSP struct {
	Mode         string        `yaml:"mode" use:"tunnel or transport" doc:"how Falcon packets are carried: tunnel (with the functions' addresses and the tenant's cookie inside) or transport; the same on all NICs"`
	Version      uint8         `yaml:"version" use:"0 to 3" doc:"0 AES-GCM-128, 1 AES-GCM-256, 2 AES-GMAC-128, 3 AES-GMAC-256 (GMAC does not hide data)"`
	ReplayMargin time.Duration `yaml:"replay_margin" use:"1ms to 2m" doc:"how far a packet may lie behind the newest one seen"`

	RotateEvery *time.Duration `yaml:"rotate_every" use:"0s, or 1s to 720h" doc:"time between two rotations of all keys; 0s: only by vnic keys rotate"`

	KeyLog string `yaml:"keylog" default:"none" doc:"file to which every key is written, to decrypt captures; only vnic's user may be able to change its folder"`
}

// PSP modes.
const (
	PSPTunnel    = "tunnel"    // with the functions' addresses and the tenant's cookie inside
	PSPTransport = "transport" // Falcon directly in PSP, without inner IP and cookie; the key alone names the tenant
)

// CM is the link over which NICs agree on connections and keys: mutual TLS
// over the host's own network.
type CM struct {
	Listen   netip.AddrPort `yaml:"listen" default:"required with peers" doc:"address at which peers agree on connections and keys with this NIC, by mutual TLS on the host's own network"`
	Identity string         `yaml:"identity" default:"required with peers" doc:"folder with ca.pem, host-NAME.pem and host-NAME.key, made by vnic keys init"`
	Name     string         `yaml:"name" use:"1 to 63 of a-z, 0-9, - and ." default:"nic.host" doc:"this NIC's name, which is in its certificate, and by which its peers know it"`
}

// Peer is another NIC, and what it may do. It is known by its name.
type Peer struct {
	Name      string         `yaml:"name" use:"1 to 63 of a-z, 0-9, - and ." default:"the name in identity, or host" doc:"its cm.name, which is in its certificate"`
	Host      uint8          `yaml:"host" use:"1 to 255" default:"what it says" doc:"its nic.host; a peer that says another is refused"`
	Underlay  Place          `yaml:"underlay" default:"required" doc:"its uplink.address, or its uplink.listen; without a port: 1000; 0.0.0.0 or ::, for an uplink over UDP: anywhere, as behind NAT"`
	CM        netip.AddrPort `yaml:"cm" default:"it dials this NIC" doc:"its cm.listen, unless it cannot be reached there, as behind NAT"`
	Identity  string         `yaml:"identity" default:"name, in this NIC's domain" doc:"URI that its certificate must carry"`
	Tenants   []uint32       `yaml:"tenants" use:"1 to 4294967295" default:"none" doc:"tenants that it may use; requests for others are refused and counted"`
	Functions []PeerFunction `yaml:"functions" doc:"which of a tenant's addresses are at this peer"`

	All bool // Functions are all that it has, in all its tenants: a directory knows them
}

// HasPeers reports whether the NIC has peers from the configuration on, or may have some from a directory.
func (c *Config) HasPeers() bool { return len(c.Peers) > 0 || c.Directory.Etcd != nil }

// Directory says where peers come from that are not listed.
type Directory struct {
	Etcd *Etcd `yaml:"etcd" doc:"the hosts of a fleet, by keys in etcd"`
}

// Etcd is how a NIC reaches the etcd of its fleet. It shows the certificate in cm.identity there, too.
type Etcd struct {
	Endpoints []string `yaml:"endpoints" default:"required" doc:"URLs of etcd's members, as https://10.1.0.1:2379"`
	Prefix    string   `yaml:"prefix" default:"required" doc:"prefix of the fleet's keys, as /vnic/lab"`
}

// PeerFunction locates a tenant's address at a peer.
type PeerFunction struct {
	Tenant  uint32     `yaml:"tenant" use:"1 to 4294967295" default:"required" doc:"a tenant of which this peer has listed addresses, and no others; needed only when several peers share the tenant"`
	Address netip.Addr `yaml:"address" default:"required" doc:"an address of the tenant that is at this peer, and at no other"`
}

// Function holds the settings that PFs and VFs have in common.
type Function struct {
	MAC       MAC        `yaml:"mac" default:"from cm.name, PF and VF" doc:"MAC address"`
	Tenant    uint32     `yaml:"tenant" use:"1 to 4294967295, or 0 for none" default:"0" doc:"virtual network that the function is in; 0: none"`
	Address   netip.Addr `yaml:"address" default:"required with a tenant" doc:"the function's address in the tenant, IPv4 or IPv6; its GID"`
	Guest     *Guest     `yaml:"guest" doc:"who may drive the function; nobody when left out"`
	Service   string     `yaml:"service" use:"echo, memory or pattern" default:"none" doc:"the NIC itself drives the function and answers who connects to it, in place of a guest (docs/driver-guide.md)"`
	DMAWindow *Window    `yaml:"dma_window" doc:"the part of the guest's memory that the function may access; all of it when left out"`
	Limits    Limits     `yaml:"limits" doc:"what the driver may create; it has at most 2×qp + 2×ah + 256 connections, in any state"`
	Credits   Credits    `yaml:"credits" doc:"packet resources of the NIC that the function may hold at once"`
	Guarantee Credits    `yaml:"guarantee" doc:"the part of them that is reserved for the function; nothing when left out"`

	Transport string `yaml:"transport" use:"auto, falcon, roce or iwarp" default:"rdma.transport" doc:"how the function's RDMA reaches its peers, as rdma.transport says it for the NIC"`

	Enabled *bool `yaml:"enabled" use:"true or false" default:"true with a tenant" doc:"false: disabled until the operator (vnic vf enable) or the PF enables it"`

	MaxTxRate  uint64    `yaml:"max_tx_rate" doc:"Mbit/s that the function may send; 0: no limit"`
	Weight     uint8     `yaml:"weight" use:"1 to 255" default:"1" doc:"share of the NIC, relative to other busy functions"`
	Trust      bool      `yaml:"trust" use:"true or false" doc:"the port may send from any MAC address; a trusted PF may give its VFs any tenant"`
	SpoofCheck *bool     `yaml:"spoofcheck" use:"true or false" doc:"the port may only send from the function's own MAC and addresses"`
	Link       pfvf.Link `yaml:"link" use:"auto, enable or disable" doc:"auto: a VF's link follows its PF's"`

	Port *Port `yaml:"port" doc:"its Ethernet port for plain IP; none when left out"`

	Shard *int `yaml:"shard" use:"0 to 15" default:"spread over nic.shards" doc:"event loop that carries the function"`
}

// PF is a physical function and its virtual functions.
type PF struct {
	PF uint8 `yaml:"pf" use:"0 to 15" default:"0" doc:"number of the physical function"`
	Function
	VFCount int  `yaml:"vf_count" use:"0 to 4095" default:"4, or the highest VF listed" doc:"highest VF number that may be enabled; a VF that is not listed has no tenant yet"`
	VFs     []VF `yaml:"vfs" doc:"virtual functions of the PF"`
}

// VF is a virtual function.
type VF struct {
	VF uint16 `yaml:"vf" use:"1 to 4095" default:"required" doc:"number of the virtual function"`
	Function
}

// Guest identifies who may drive a function: the guest with a vsock context id, or the client of a
// named unix attachment.
type Guest struct {
	CID  uint32 `yaml:"cid" use:"3 to 4294967294" default:"none" doc:"context id of the guest that drives the function"`
	Unix string `yaml:"unix" doc:"or the name of the unix attachment whose client drives it"`
}

// Services: what the NIC's own driver of a function does.
const (
	ServiceEcho    = "echo"    // sends back what it receives
	ServiceMemory  = "memory"  // has a region to be read and written
	ServicePattern = "pattern" // has a region to be read, and checks what it receives
)

// Window is a range of device addresses.
type Window struct {
	Address Size `yaml:"address" use:"multiple of 4K" doc:"start of the part of the guest's memory that the function may access; without dma_window it may access all of it"`
	Size    Size `yaml:"size" use:"multiple of 4K" doc:"bytes of that part"`
}

// Limits bounds the objects that one function may create. Zero means the default.
type Limits struct {
	Quotas
	QPEntries  uint32 `yaml:"qp_entries" use:"a power of two, 1 to 262144" doc:"entries of a send, receive or shared receive queue"`
	CQEntries  uint32 `yaml:"cq_entries" use:"a power of two, 1 to 262144" doc:"entries of a completion queue"`
	ReadAtomic uint32 `yaml:"read_atomic" use:"1 to 128" doc:"outstanding READ and atomic packets of a queue pair"`
	PageLists  Size   `yaml:"page_lists" use:"4K to 1G" doc:"the NIC's memory for page lists of memory regions; 1 MiB for each GiB registered, none for contiguous memory"`
}

// Credits is an amount of the NIC's packet resources: the six counters of
// Falcon §8.2.3 and the two pools for requests from the network. Zero means the
// default.
type Credits struct {
	RequestPacketTx uint32 `yaml:"request_packet_tx" doc:"requests that are sent"`
	RequestBufferTx uint32 `yaml:"request_buffer_tx" doc:"their payload"`
	RequestPacketRx uint32 `yaml:"request_packet_rx" doc:"responses to requests of this end"`
	RequestBufferRx uint32 `yaml:"request_buffer_rx" doc:"their payload"`
	DataPacketTx    uint32 `yaml:"data_packet_tx" doc:"packets that answer requests of the peer"`
	DataBufferTx    uint32 `yaml:"data_buffer_tx" doc:"their payload"`

	NetworkPacketRx uint32 `yaml:"network_packet_rx" doc:"requests received and not answered"`
	NetworkBufferRx uint32 `yaml:"network_buffer_rx" doc:"payload of those that wait for an earlier one, in pieces of up to 4608 bytes"`
}

// CreditTree holds the limits for all functions together, and for one connection. Zero means the
// default; for a connection that is a share of its function's limit.
type CreditTree struct {
	NIC        Credits `yaml:"nic" doc:"limits for all functions together"`
	Host       Credits `yaml:"host" doc:"the same as credits.nic when left out"`
	Connection Credits `yaml:"connection" doc:"limits for one connection; what is left out is a quarter of what its function may hold, of network_… all of it"`
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
	Type    string `yaml:"type" use:"vhost-user, unix, vsock or vfio-user" default:"required" doc:"vhost-user: the NIC's vsock device for one guest; unix: bare clients that pass their memory; vsock: the kernel's vsock; vfio-user: each function a PCI device of one guest's QEMU (10.1 or newer)"`
	Name    string `yaml:"name" default:"the socket's file name" doc:"unix: the name that functions refer to"`
	Socket  string `yaml:"socket" default:"required, but for vsock" doc:"socket that QEMU or a client connects to; vfio-user: each function has a socket beside it, as guest5.pf0.vf1"`
	CID     uint32 `yaml:"cid" use:"3 to 4294967294" default:"required for a guest" doc:"vhost-user, vfio-user: the guest's context id"`
	Windows bool   `yaml:"windows" use:"true or false" doc:"vhost-user: each function of the guest gets an ivshmem device for its doorbells"`
	Vsock   string `yaml:"vsock" default:"none" doc:"vhost-user: socket by which programs of the host reach ports on which the guest listens; they write CONNECT and the port, as a line"`
	Port    uint32 `yaml:"port" default:"7000" doc:"vsock: port to listen on"`
	RAM     []RAM  `yaml:"ram" doc:"the memory of each guest, for type vsock"`
	PCI     *PCI   `yaml:"pci" doc:"how the devices look, for type vfio-user"`
}

// PCI says how functions look to a guest as PCI devices.
type PCI struct {
	Vendor          *PCIID `yaml:"vendor" doc:"PCI vendor id of the functions"`
	Device          *PCIID `yaml:"device" doc:"device id"`
	SubsystemVendor *PCIID `yaml:"subsystem_vendor" default:"vendor" doc:"subsystem vendor id"`
	SubsystemDevice *PCIID `yaml:"subsystem_device" default:"device" doc:"subsystem id"`
	Interrupts      string `yaml:"interrupts" use:"msix or msi" doc:"msi: for QEMU 11.1, which ends when a device with MSI-X is unplugged"`
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
	CID    uint32     `yaml:"cid" use:"1, or 3 to 4294967295" default:"required" doc:"guest whose memory is in the file"`
	File   string     `yaml:"file" default:"required" doc:"file that QEMU shares (memory-backend-file with share=on)"`
	Layout []RAMRange `yaml:"layout" doc:"ranges of the file"`
}

// RAMRange maps a range of guest-physical addresses to a range of the file.
type RAMRange struct {
	Address Size `yaml:"address" use:"multiple of 4K" doc:"guest-physical address of a range"`
	Size    Size `yaml:"size" use:"multiple of 4K" default:"required" doc:"its size"`
	Offset  Size `yaml:"offset" use:"multiple of 4K" doc:"its offset in the file"`
}

// Capture modes.
const (
	CaptureSealed = "sealed" // frames as on the uplink
	CaptureClear  = "clear"  // packets after opening, before sealing
	CaptureBoth   = "both"
)

// Capture makes the NIC write packets to a pcapng file from its start.
type Capture struct {
	File string `yaml:"file" default:"required" doc:"pcapng file to which packets are written from the start"`
	Mode string `yaml:"mode" use:"sealed, clear or both" doc:"sealed: as on the uplink; clear: inside the encryption"`
}

package control

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"github.com/falcon-vnic/vnic/device/fault"
)

// NIC is the answer of GET /v1/nic.
type NIC struct {
	Host     uint8  `json:"host"`
	Name     string `json:"name"`    // for people
	CMName   string `json:"cm_name"` // in its certificate; peers know it by that
	Version  string `json:"version"`
	PID      int    `json:"pid"`                // process id of vnic run
	Worker   int    `json:"worker,omitempty"`   // process id of the worker, if the NIC runs in another process
	Starts   int    `json:"starts,omitempty"`   // number of worker starts
	Stuck    int    `json:"stuck,omitempty"`    // workers replaced because the NIC's event loop was stuck
	Upgrades int    `json:"upgrades,omitempty"` // number of requested upgrades
	// UpgradeRefused is why the last upgrade was not carried out; "": it was.
	UpgradeRefused string   `json:"upgrade_refused,omitempty"`
	Reloads        int      `json:"reloads,omitempty"`        // number of requested reloads
	ReloadRefused  string   `json:"reload_refused,omitempty"` // why the last one was not carried out; "": it was
	Reloadable     bool     `json:"reloadable,omitempty"`     // SIGHUP to vnic run is a reload and SIGUSR2 an upgrade; else SIGHUP is one
	Recording      string   `json:"recording,omitempty"`      // file that all is recorded to
	Warnings       []string `json:"warnings,omitempty"`       // configured features that the NIC runs without
	UptimeMS       int64    `json:"uptime_ms"`                // of the NIC: connections and keys are no older
	Uplinks        []Uplink `json:"uplinks"`
	Peers          []Peer   `json:"peers"`
}

// Uplink is a port to the fabric.
type Uplink struct {
	Name string `json:"name"`
	MAC  string `json:"mac"`
	Addr string `json:"addr"` // underlay address with prefix length
	MTU  int    `json:"mtu"`

	RX Direction `json:"rx"` // what arrives
	TX Direction `json:"tx"` // what leaves
}

// Direction holds the injected faults of one direction of an uplink, and their effects.
type Direction struct {
	Impairment Impairment `json:"impairment"`
	Counts     Impaired   `json:"counts"`
}

// Impairment holds the injected faults; shares of packets are 0 to 1.
type Impairment struct {
	Loss           float64 `json:"loss"`
	Duplicate      float64 `json:"duplicate"`
	Reorder        float64 `json:"reorder"`
	ReorderDelayNS int64   `json:"reorder_delay_ns"`
	Corrupt        float64 `json:"corrupt"`
	Mark           float64 `json:"mark"`
	DelayNS        int64   `json:"delay_ns"`
	JitterNS       int64   `json:"jitter_ns"`
	Rate           int64   `json:"rate"` // bits per second, 0: unlimited
	Queue          int     `json:"queue"`
	Down           bool    `json:"down"`
	Seed           uint64  `json:"seed"`
}

// Impaired counts packets since the NIC started, without those that passed while no faults were
// injected.
type Impaired struct {
	Packets    uint64 `json:"packets"`
	Delivered  uint64 `json:"delivered"`
	Lost       uint64 `json:"lost"`
	Duplicated uint64 `json:"duplicated"`
	Reordered  uint64 `json:"reordered"`
	Corrupted  uint64 `json:"corrupted"`
	Marked     uint64 `json:"marked"`
	Overflowed uint64 `json:"overflowed"`
}

// LinkChange is the body of POST /v1/inject/link. Set holds the fields of an
// Impairment that change, by their names in JSON.
type LinkChange struct {
	Uplink    string          `json:"uplink"`    // "": the only one
	Direction string          `json:"direction"` // rx, tx, or "" for both
	Clear     bool            `json:"clear"`     // first set everything to its default
	Set       json.RawMessage `json:"set"`
}

// FaultChange is the body of POST /v1/inject/fault: a rule to add, a profile, or what to clear.
type FaultChange struct {
	Function string      `json:"function"` // "h1.pf0.vf2" or "pf0.vf2"; "" clears all functions
	Add      *fault.Rule `json:"add,omitempty"`
	Profile  string      `json:"profile,omitempty"` // "hostile", "none"
	Seed     uint64      `json:"seed,omitempty"`    // of the profile
	Clear    bool        `json:"clear,omitempty"`
	ID       uint32      `json:"id,omitempty"` // of the rule to clear; 0: all of the function, and its profile
}

// Fault is one entry of GET /v1/faults: a rule and its effects, or a profile, which has id 0.
type Fault struct {
	Function string `json:"function"`
	ID       uint32 `json:"id"`
	fault.Rule
	Seen      uint64 `json:"seen"` // operations that the rule matches
	Hits      uint64 `json:"hits"` // operations that it affected
	Over      bool   `json:"over"` // it has no further effect
	AgeMS     int64  `json:"age_ms"`
	RemainsMS int64  `json:"remains_ms,omitempty"`
}

// Peer is another NIC and the state of the connection management link to it.
type Peer struct {
	Name        string        `json:"name"` // in its certificate; others are told apart by it
	Host        uint8         `json:"host"` // its nic.host; 0: not known yet
	Underlay    string        `json:"underlay"`
	CM          string        `json:"cm"` // where it is dialed; "": nowhere, it dials
	Identity    string        `json:"identity"`
	Tenants     []uint32      `json:"tenants"`
	Addresses   []PeerAddress `json:"addresses"` // that are listed for it; in their tenants it may have no others
	Up          bool          `json:"up"`
	Functions   int           `json:"functions"`      // addresses of functions that it offers and has
	Refused     int           `json:"refused"`        // addresses of functions and ports that it announces but does not get
	Connections int           `json:"connections"`    // in any state
	PathMTU     int           `json:"path_mtu"`       // bytes of outer IP packet that the network carries to it, as far as that is known
	Note        string        `json:"note,omitempty"` // a problem, or what is waited for

	// ClockAheadMS is about how far its clock is ahead of this NIC's; 0 also if that is not
	// known.
	ClockAheadMS int64 `json:"clock_ahead_ms"`
}

// Directory is the answer of GET /v1/directory: where the NIC's peers come from besides its
// configuration, and how that goes. With the kind "static" they come from there and from operators alone.
type Directory struct {
	Kind        string    `json:"kind"` // "etcd" or "static"
	Name        string    `json:"name,omitempty"`
	Endpoints   []string  `json:"endpoints,omitempty"`
	Prefix      string    `json:"prefix,omitempty"`
	Watching    bool      `json:"watching"`
	Revision    int64     `json:"revision"`          // of etcd, that was seen last
	SinceMS     int64     `json:"since_ms"`          // it watches, or does not
	Reading     string    `json:"reading,omitempty"` // why it does not watch
	Keeping     string    `json:"keeping,omitempty"` // why this host's record is not there
	Hosts       int       `json:"hosts"`             // that have a record or a grant
	Peers       int       `json:"peers"`             // of these
	Lists       uint64    `json:"lists"`             // times that everything was read
	Changes     uint64    `json:"changes"`           // that were seen
	Failures    uint64    `json:"failures"`          // of reading and watching
	Denied      uint64    `json:"denied"`            // times that etcd, or this NIC, refused the other
	Compactions uint64    `json:"compactions"`       // etcd had forgotten what was missed
	LeasesLost  uint64    `json:"leases_lost"`
	Yields      uint64    `json:"yields"`   // another NIC had this one's name
	Refused     []Refusal `json:"refused"`  // claims of hosts that are not believed
	Problems    []string  `json:"problems"` // what the directory says and this NIC could not do
}

// Refusal is a claim of a host that is not believed.
type Refusal struct {
	Host string `json:"host"`
	What string `json:"what,omitempty"`
	Why  string `json:"why"`
}

// RecordingStart is the body of POST /v1/recording/start.
type RecordingStart struct {
	File    string `json:"file"`              // absolute; it is made
	Payload string `json:"payload,omitempty"` // what is kept of it: digest, whole or none; "": digest
}

// Recorded is the answer to POST /v1/recording/stop.
type Recorded struct {
	File  string `json:"file"`
	Ended string `json:"ended,omitempty"` // why the recording ended before; "": it did not
}

// Reloaded is the answer to POST /v1/reload: what has changed, for people; nothing is an empty list.
type Reloaded struct {
	Changed []string `json:"changed"`
}

// PeerAddress is an address of a tenant that is at a peer.
type PeerAddress struct {
	Tenant  uint32 `json:"tenant"`
	Address string `json:"address"`
}

// PeerChange is the body of POST /v1/peers/change. What is missing stays as it is. Without an
// identity, a peer that is added has its name in this NIC's domain.
type PeerChange struct {
	Action    string         `json:"action"` // "add", "set" or "remove"
	Name      string         `json:"name"`   // in its certificate
	Host      *uint8         `json:"host,omitempty"`
	Underlay  *string        `json:"underlay,omitempty"`
	CM        *string        `json:"cm,omitempty"`
	Identity  *string        `json:"identity,omitempty"` // when it is added
	Tenants   *[]uint32      `json:"tenants,omitempty"`
	Addresses *[]PeerAddress `json:"addresses,omitempty"`
}

// Route is one entry of GET /v1/routes: where plain IP of a tenant goes.
type Route struct {
	Tenant   uint32 `json:"tenant"`
	Prefix   string `json:"prefix"`
	Via      string `json:"via,omitempty"`  // for a network behind a function: the address of that function
	Kind     string `json:"kind"`           // "port", "peer", "router"; "none": nobody has the address that it goes by
	Port     string `json:"port,omitempty"` // of this NIC: the device name
	Peer     uint8  `json:"peer,omitempty"` // its nic.host
	PeerName string `json:"peer_name,omitempty"`
	Sealed   bool   `json:"sealed"` // peer: it has given this NIC a key
	MTU      int    `json:"mtu,omitempty"`
}

// Function is one entry of GET /v1/functions.
type Function struct {
	ID       string `json:"id"` // "h1.pf0.vf2"
	Number   uint32 `json:"number"`
	Type     string `json:"type"` // "pf", "vf"
	State    string `json:"state"`
	Fault    string `json:"fault,omitempty"` // why it is in the error state
	Tenant   uint32 `json:"tenant"`
	Addr     string `json:"addr"`
	MAC      string `json:"mac"`
	Guest    string `json:"guest,omitempty"`    // who may drive it: "cid 1001", "unix client1" or "service echo"
	Attached string `json:"attached,omitempty"` // transport of the guest: "vhost-user", "vsock", "unix", "in-process"
	RDMA     string `json:"rdma"`               // how its RDMA reaches peers: "auto", "falcon", "roce", "iwarp"
	Objects

	Link       string `json:"link"` // "auto", "enable", "disable"
	LinkUp     bool   `json:"link_up"`
	MaxTxRate  uint64 `json:"max_tx_rate"` // Mbit/s, 0: no limit
	Weight     uint8  `json:"weight"`
	Trust      bool   `json:"trust"`
	SpoofCheck bool   `json:"spoofcheck"`
	Quotas
	Port      *Port  `json:"port,omitempty"`
	DMAWindow string `json:"dma_window,omitempty"` // "address+size"; "": all of the guest's memory
	TotalVFs  int    `json:"total_vfs,omitempty"`  // of a PF: highest VF number that may be enabled
	NumVFs    int    `json:"num_vfs,omitempty"`    // of a PF: enabled
	Resets    uint64 `json:"resets"`
	TxBytes   uint64 `json:"tx_bytes"` // data bytes of SENDs and WRITEs issued
	RxBytes   uint64 `json:"rx_bytes"` // data bytes placed in its memory
	RateWaits uint64 `json:"rate_waits"`
}

// Port is a function's Ethernet port.
type Port struct {
	Name   string `json:"name"`             // of the TAP device
	Type   string `json:"type"`             // tap or vhost-user
	Socket string `json:"socket,omitempty"` // vhost-user: socket path
	Listen string `json:"listen,omitempty"` // vhost-user: who makes the socket
	Queues int    `json:"queues,omitempty"` // vhost-user: number of queue pairs
	Mode   string `json:"mode,omitempty"`   // tap: direct or bridged
	Bridge string `json:"bridge,omitempty"`
	Netns  string `json:"netns,omitempty"`
	MTU    int    `json:"mtu"`
	Up     bool   `json:"up"`
	Fault  string `json:"fault,omitempty"` // vhost-user: why the guest's driver must restart the device
}

// FunctionChange is the body of POST /v1/functions/change. Set holds changes by name, as for `vnic
// vf set`; Action is "", "enable", "disable" or "reset".
type FunctionChange struct {
	Function string            `json:"function"` // "h1.pf0.vf2" or "pf0.vf2"
	Action   string            `json:"action,omitempty"`
	Set      map[string]string `json:"set,omitempty"`
}

// CreditNode is one entry of GET /v1/credits: a node of the credit tree. A counter that is missing
// in a map has no limit, or is 0.
type CreditNode struct {
	Level      string            `json:"level"` // "nic", "host", "function", "connection"
	Name       string            `json:"name"`
	Limit      map[string]uint32 `json:"limit"`
	Guarantee  map[string]uint32 `json:"guarantee"`
	InUse      map[string]uint32 `json:"in_use"`
	Charged    map[string]uint32 `json:"charged"` // in use, plus reserved below and not used
	Refused    uint64            `json:"refused"`
	Underflows uint64            `json:"underflows"`
}

// QP is one entry of GET /v1/qps.
type QP struct {
	Function  string `json:"function"`
	QPN       uint32 `json:"qpn"`
	Type      string `json:"type"`
	State     string `json:"state"`
	Peer      string `json:"peer,omitempty"` // GID of the connected peer
	PeerQPN   uint32 `json:"peer_qpn,omitempty"`
	SendCQ    uint32 `json:"send_cq"`
	RecvCQ    uint32 `json:"recv_cq"`
	Posted    uint32 `json:"posted"`    // send requests that the driver has written and the NIC has not read
	InFlight  uint32 `json:"in_flight"` // read and not completed
	Packets   int    `json:"packets"`   // packets of those that the transport has
	Reads     int    `json:"reads"`     // READs and atomics among them
	Waits     string `json:"waits,omitempty"`
	PathMTU   int    `json:"path_mtu,omitempty"`
	RetryCnt  uint8  `json:"retry_cnt"`
	RNRRetry  uint8  `json:"rnr_retry"`
	MaxAtomic uint8  `json:"max_rd_atomic"`
}

// Queue is one entry of GET /v1/queues: a ring in guest memory, as the device sees it.
type Queue struct {
	Function string `json:"function"`
	Kind     string `json:"kind"`   // "admin-sq", "sq", "rq", "cq"
	Number   uint32 `json:"number"` // of the QP or CQ
	Entries  uint32 `json:"entries"`
	Producer uint32 `json:"producer"` // last seen, or written
	Consumer uint32 `json:"consumer"` // last written, or seen
	Level    uint32 `json:"level"`    // entries between them
	Note     string `json:"note,omitempty"`
}

// Key is one entry of GET /v1/keys: a security association, without the key.
type Key struct {
	Direction  string `json:"direction"` // "rx", "tx"
	Peer       uint8  `json:"peer"`      // its nic.host
	PeerName   string `json:"peer_name"`
	Tenant     uint32 `json:"tenant"`
	Class      string `json:"class"` // "falcon", "gateway"
	SPI        uint32 `json:"spi"`
	Previous   uint32 `json:"previous,omitempty"`   // rx: SPI that is still accepted
	Generation uint32 `json:"generation,omitempty"` // rx: of the master key it is derived from
	Packets    uint64 `json:"packets,omitempty"`    // tx: sealed with it
	RekeyDue   bool   `json:"rekey_due,omitempty"`  // tx
}

// Connection is one entry of GET /v1/connections.
type Connection struct {
	ID           uint32 `json:"id"`   // 0 over a wire without identifiers, keys and hosts of connections
	Wire         string `json:"wire"` // its name, "falcon" for example
	Function     string `json:"function"`
	PeerFunction string `json:"peer_function"`
	PeerAddress  string `json:"peer_address,omitempty"` // over a wire without identifiers
	PeerHost     uint8  `json:"peer_host"`
	PeerName     string `json:"peer_name,omitempty"` // "": a function of this NIC
	Tenant       uint32 `json:"tenant"`
	State        string `json:"state"`
	QPN          uint32 `json:"qpn"`
	PeerQPN      uint32 `json:"peer_qpn"`
	LocalCID     uint32 `json:"local_cid"`
	RemoteCID    uint32 `json:"remote_cid"`
	TxSPI        uint32 `json:"tx_spi"`
	RxSPI        uint32 `json:"rx_spi"`
	MTU          int    `json:"mtu"`
	Retransmits  uint64 `json:"retransmits"` // packets sent again
	AgeMS        int64  `json:"age_ms"`

	Cwnd          float64 `json:"cwnd"` // packets; this and the next are 0 until the connection is established
	RTTNS         int64   `json:"rtt_ns"`
	DelayNS       int64   `json:"delay_ns"`        // the delay that congestion control regulates
	DelayTargetNS int64   `json:"delay_target_ns"` // its target without other flows
	Note          string  `json:"note,omitempty"`  // a problem with the path
}

// Violation is a rule of docs/abi that a driver broke, as in GET /v1/violations. The same clause at
// the same queue is listed once. It shows the first violation of the newest session that broke it.
type Violation struct {
	Function string `json:"function"`
	Clause   string `json:"clause,omitempty"` // DRV-…; "": a work request was wrong
	What     string `json:"what"`             // in words
	Ring     string `json:"ring"`
	Queue    uint32 `json:"queue"`
	Index    uint32 `json:"index"`
	Bytes    string `json:"bytes"` // hexadecimal, the first violating bytes
	Count    uint32 `json:"count"`
	AgeMS    int64  `json:"age_ms"` // of the first
}

// Operation is one request as one function saw it: a work request of its own driver, or a packet of
// the peer.
type Operation struct {
	Function  string `json:"function"`
	Side      string `json:"side"` // requester or responder
	QPN       uint32 `json:"qpn"`
	Op        string `json:"op"`
	WQE       uint32 `json:"wqe"`           // requester: index of the entry
	WRID      uint64 `json:"wr_id"`         // requester
	CID       uint32 `json:"cid,omitempty"` // responder: connection
	RSN       uint32 `json:"rsn,omitempty"` // responder: transaction of it; in a network the PSN
	Bytes     uint32 `json:"bytes"`         // of the message; responder: of the packet
	Transport string `json:"transport"`     // name of the wire; none for what concerns this side only
	Packets   int    `json:"packets"`
	Again     int    `json:"again"`            // packets sent again
	Status    string `json:"status,omitempty"` // of the completion; empty: there is none
	Open      bool   `json:"open,omitempty"`   // the operation was not complete when the trace ended
	Found     bool   `json:"found,omitempty"`  // the NIC found the entry in the ring without a doorbell
	Steps     []Step `json:"steps"`            // in the order of time
}

// Step is one of an operation's steps.
type Step struct {
	Name  string `json:"step"`
	At    int64  `json:"at_ns"`    // since 1970 UTC
	After int64  `json:"after_ns"` // since the step before; 0 for the first
}

// TraceRequest selects what GET /v1/trace follows.
type TraceRequest struct {
	Function string
	QPN      uint32        // 0: every queue pair
	For      time.Duration // duration; at its end incomplete requests are also reported. 0: until the client disconnects
}

// TraceLine is one line of GET /v1/trace: exactly one of its fields is set.
type TraceLine struct {
	Tracing   string     `json:"tracing,omitempty"` // the function; the first line
	Operation *Operation `json:"operation,omitempty"`
	Lost      uint64     `json:"lost,omitempty"` // events that were overwritten before they were read
}

// Rotation is the answer of POST /v1/keys/rotate: the rotation has begun.
type Rotation struct {
	Generation uint32 `json:"generation"` // of the new master key
	Keys       int    `json:"keys"`       // keys being given to peers
}

// Counters maps "package.counter" to a value, as in GET /v1/counters.
type Counters map[string]uint64

// Provider carries out the requests. Its methods are called from several goroutines and return
// soon, at the latest when ctx is done.
type Provider interface {
	NIC(ctx context.Context) (NIC, error)
	Functions(ctx context.Context) ([]Function, error)
	Connections(ctx context.Context) ([]Connection, error)
	Routes(ctx context.Context) ([]Route, error)
	Counters(ctx context.Context) (Counters, error)
	RotateKeys(ctx context.Context) (Rotation, error)
	ChangeFunction(ctx context.Context, c FunctionChange) (Function, error)
	// Reload reads the configuration again.
	Reload(ctx context.Context) (Reloaded, error)
	Peers(ctx context.Context) ([]Peer, error)
	Directory(ctx context.Context) (Directory, error)
	// ChangePeer returns the peers as they are after the change.
	ChangePeer(ctx context.Context, c PeerChange) ([]Peer, error)
	Credits(ctx context.Context) ([]CreditNode, error)
	QPs(ctx context.Context) ([]QP, error)
	Queues(ctx context.Context) ([]Queue, error)
	Keys(ctx context.Context) ([]Key, error)
	Violations(ctx context.Context) ([]Violation, error)
	// ClearViolations forgets the violations and returns them.
	ClearViolations(ctx context.Context) ([]Violation, error)
	InjectLink(ctx context.Context, c LinkChange) (Uplink, error)
	InjectFault(ctx context.Context, c FaultChange) ([]Fault, error)
	Faults(ctx context.Context) ([]Fault, error)
	// Capture writes pcapng to w until ctx ends or w fails. mode is sealed, clear, both, or "" for
	// ports only. ports are names of ports or functions, or any.
	Capture(ctx context.Context, mode string, ports []string, w io.Writer) error
	// Recording writes what the NIC's recorder has (device/record).
	Recording(ctx context.Context, w io.Writer) error
	// StartRecording has the worker replaced by one that records to a new file, and returns the NIC as it is before
	// that. StopRecording ends the recording in a file.
	StartRecording(ctx context.Context, s RecordingStart) (NIC, error)
	StopRecording(ctx context.Context) (Recorded, error)
	// Trace writes JSON TraceLines to w until ctx ends or w fails.
	Trace(ctx context.Context, what TraceRequest, w io.Writer) error
}

// BadRequest is an error of a Provider that the caller can correct.
type BadRequest struct{ Err error }

func (e BadRequest) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e BadRequest) Unwrap() error { return e.Err }

package control

import (
	"context"
	"encoding/json"
)

// NIC is the answer of GET /v1/nic.
type NIC struct {
	Host     uint8    `json:"host"`
	Name     string   `json:"name"`
	Version  string   `json:"version"`
	PID      int      `json:"pid"`
	UptimeMS int64    `json:"uptime_ms"`
	Uplinks  []Uplink `json:"uplinks"`
	Peers    []Peer   `json:"peers"`
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

// Direction is what an uplink is asked to do to packets, and what it did.
type Direction struct {
	Impairment Impairment `json:"impairment"`
	Counts     Impaired   `json:"counts"`
}

// Impairment is what is asked; shares of packets are 0 to 1.
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

// Impaired counts packets since the NIC started, those that passed while
// nothing was asked excepted.
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

// Peer is another NIC and the state of the connection management link to it.
type Peer struct {
	Host        uint8    `json:"host"`
	Underlay    string   `json:"underlay"`
	Identity    string   `json:"identity"`
	Tenants     []uint32 `json:"tenants"`
	Up          bool     `json:"up"`
	Functions   int      `json:"functions"`   // that it offers to us
	Connections int      `json:"connections"` // in any state
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
	Guest    string `json:"guest,omitempty"`    // who may drive it: "cid 1001" or "unix client1"
	Attached string `json:"attached,omitempty"` // transport of the guest: "vhost-user", "vsock", "unix"
	QPs      int    `json:"qps"`
	CQs      int    `json:"cqs"`
	MRs      int    `json:"mrs"`
}

// Connection is one entry of GET /v1/connections.
type Connection struct {
	ID           uint32 `json:"id"`
	Function     string `json:"function"`
	PeerFunction string `json:"peer_function"`
	PeerHost     uint8  `json:"peer_host"`
	Tenant       uint32 `json:"tenant"`
	State        string `json:"state"`
	QPN          uint32 `json:"qpn"`
	PeerQPN      uint32 `json:"peer_qpn"`
	LocalCID     uint32 `json:"local_cid"`
	RemoteCID    uint32 `json:"remote_cid"`
	TxSPI        uint32 `json:"tx_spi"`
	RxSPI        uint32 `json:"rx_spi"`
	MTU          int    `json:"mtu"`
	AgeMS        int64  `json:"age_ms"`
}

// Rotation is the answer of POST /v1/keys/rotate: it has begun.
type Rotation struct {
	Generation uint32 `json:"generation"` // of the new master key
	Keys       int    `json:"keys"`       // being handed to peers
}

// Counters maps "room.name" to a value, as GET /v1/counters gives it.
type Counters map[string]uint64

// Provider answers the requests. Its methods are called from several
// goroutines and return soon, at the latest when ctx is done.
type Provider interface {
	NIC(ctx context.Context) (NIC, error)
	Functions(ctx context.Context) ([]Function, error)
	Connections(ctx context.Context) ([]Connection, error)
	Counters(ctx context.Context) (Counters, error)
	RotateKeys(ctx context.Context) (Rotation, error)
	InjectLink(ctx context.Context, c LinkChange) (Uplink, error)
}

// BadRequest is an error of a Provider that the caller can mend.
type BadRequest struct{ Err error }

func (e BadRequest) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e BadRequest) Unwrap() error { return e.Err }

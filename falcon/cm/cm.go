package cm

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
)

// Time is in nanoseconds of the engine's monotonic clock, from which the PSP IV is also taken.
type Time = int64

// HostID is the host of a function: the top byte of its number. It is local to the function's NIC
// (Falcon §7.2), so two NICs may have the same one.
type HostID = uint8

// PeerID is a small number for another NIC, which the owner of a Manager gives out. It means nothing
// elsewhere.
type PeerID uint32

// A PeerID is at most MaxPeerID; Self is this NIC.
const (
	Self      PeerID = 0
	MaxPeerID PeerID = 1<<16 - 1
)

// Limits of the protocol.
const (
	Version      = 2           // of the messages, and of the format of the connections that they set up
	MaxPrivate   = 64          // bytes of private data in REQ, REP and REJ
	MaxEndpoints = 2048        // functions that one Hello can offer
	MaxShards    = 16          // of a NIC
	MinMTU       = 256         // bytes; smallest MTU a connection is opened with
	MaxMTU       = 1<<15 + 128 // bytes: 32 KiB of data and its headers
	max24        = 1<<24 - 1
)

// Endpoint says that a function is reached by a GID in a tenant.
type Endpoint struct {
	Tenant   uint32
	GID      [16]byte
	Function uint32 // host 8 | PF 4 | VF 12
	Shard    uint8  // of the function, below MaxShards
}

// SA is a receive security association in the form in which its owner gives it to the sender.
type SA struct {
	Version uint8 // PSP version 0–3
	SPI     uint32
	Key     []byte // 16 bytes for versions 0 and 2, 32 for 1 and 3
}

// Class says what an SA is for. It belongs to the SA, so a receiver knows it from the SPI before it
// looks into the packet.
type Class uint8

// Classes.
const (
	ClassFalcon  Class = iota // Falcon connections
	ClassGateway              // plain IP between tenants' ports
	numClasses
)

func (c Class) String() string {
	names := [...]string{"falcon", "gateway"}
	if int(c) < len(names) {
		return names[c]
	}
	return fmt.Sprintf("class(%d)", uint8(c))
}

// Use identifies what an SA is for: the packets that one shard of a NIC seals for another NIC, in a
// tenant and a class. Each shard has its own SA, so that no two shards can use a nonce twice. Peer
// is the other NIC. Shard is the shard that seals: the peer's for SAs that we issue, ours for SAs
// that we were given.
type Use struct {
	Peer   PeerID
	Shard  uint8
	Tenant uint32
	Class  Class
}

// Compare defines an order of uses.
func (u Use) Compare(v Use) int {
	return cmp.Or(cmp.Compare(u.Peer, v.Peer), cmp.Compare(u.Tenant, v.Tenant), cmp.Compare(u.Class, v.Class), cmp.Compare(u.Shard, v.Shard))
}

func (u Use) String() string {
	return fmt.Sprintf("peer %d, tenant %d, class %v, shard %d", u.Peer, u.Tenant, u.Class, u.Shard)
}

// check reports an error if the SA is not valid.
func (s *SA) check() error {
	if s.Version > 3 || len(s.Key) != keyLen(s.Version) || s.SPI&^(1<<31) == 0 {
		return fmt.Errorf("version %d, SPI %#x, %d bytes of key: %w", s.Version, s.SPI, len(s.Key), ErrInvalid)
	}
	return nil
}

// Resources is what the Manager needs from its NIC.
type Resources interface {
	// AllocCID returns a free connection identifier (24 bits) whose top bits
	// name the shard of the function.
	AllocCID(function uint32) (uint32, error)
	// FreeCID releases a CID. It is called once for each allocated CID.
	FreeCID(cid uint32)
	// RxSA returns our receive SA for the packets that a shard of a peer seals. It is issued at the
	// first call; later calls return the same one until Manager.Rekey names another.
	RxSA(u Use) (SA, error)
	// ForgetSAs drops the receive SAs of a peer whose process restarted: its IV clock may have
	// started over, and no IV may be used twice with a key. The next RxSA issues a new one.
	ForgetSAs(peer PeerID)
}

// Peer is a NIC that this one may talk to.
type Peer struct {
	ID       PeerID
	Name     string         // for people
	Host     HostID         // of its functions; 0: the one that its first Hello says
	Underlay netip.AddrPort // where it receives PSP packets
	Tenants  []uint32       // shared with it; all other tenants are refused
	// MayHave returns why the peer may not have an address of a shared tenant; "": it may. nil: it may
	// have any address.
	MayHave func(a Address) (why string)
}

// ConnectRequest describes the connection that a function requests.
type ConnectRequest struct {
	Function uint32
	Tenant   uint32
	QPN      uint32
	Service  uint64 // identifier that a function at the other end listens on
	SGID     [16]byte
	DGID     [16]byte
	MTU      int // bytes of ULP headers and data per packet; 0: Config.MTU
	Ordered  bool
	IRD      uint8  // READs and atomics that the function's queue pair accepts at a time
	Private  []byte // at most MaxPrivate bytes

	CompleteInError bool // failed requests complete in error individually (RDMA over Falcon §6.3)
}

// Params holds what is needed to open the Falcon connection and to connect the queue pair.
type Params struct {
	ID           uint32
	Function     uint32
	Tenant       uint32
	QPN          uint32
	PeerQPN      uint32
	IRD, PeerIRD uint8  // READs and atomics that each side accepts at a time
	Peer         PeerID // Self for a connection between functions of this NIC, which is not sealed
	PeerName     string
	PeerFunction uint32
	Shard        uint8 // of the function
	PeerShard    uint8 // of the peer's function
	LocalGID     [16]byte
	PeerGID      [16]byte
	LocalCID     uint32 // the peer sends with it
	RemoteCID    uint32 // we send with it

	TxVersion uint8 // PSP version
	TxSPI     uint32
	TxKey     []byte
	RxSPI     uint32

	TxDataPSN, TxReqPSN, TxRSN uint32
	RxDataPSN, RxReqPSN, RxRSN uint32

	MTU        int
	Ordered    bool
	RemoteTime uint64 // the peer's PSP clock (ps) when it made its offer
	Active     bool   // this side sent the request

	CompleteInError bool // of both ends
}

// OutputKind says what the owner must do.
type OutputKind uint8

// Outputs and the fields of Output they use beside ID and Function.
const (
	OutSend         OutputKind = iota + 1 // send Msg to Peer, or give it to Receive if that is Self (ID and Function are 0)
	OutRequest                            // Service, Tenant, LocalGID, PeerGID, PeerFunction, PeerQPN, Ordered, CompleteInError, Private: Accept or Reject it
	OutOpen                               // Params: open the Falcon connection now
	OutEstablished                        // Private (active side: what the listener sent)
	OutClose                              // Reason: close the Falcon connection
	OutRejected                           // Reason, Consumer, Private: our request was refused
	OutDisconnected                       // Reason: an established connection ended
	OutUnreachable                        // Reason: a pending connection failed
	OutRekey                              // Use, SA: seal with it from now on
	OutRekeyed                            // Use, SA.SPI, Time: the peer now seals with it
	OutPorts                              // Peer: its ports have changed, see PortsOf
	OutRefused                            // Peer, Refused: it announces addresses that it does not get
	OutRekeyWanted                        // Use, SA.SPI: the peer has used up this SA (0: it has none)
)

func (k OutputKind) String() string {
	names := [...]string{"none", "send", "request", "open", "established", "close", "rejected", "disconnected", "unreachable", "rekey", "rekeyed", "ports", "refused", "rekey wanted"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("output(%d)", uint8(k))
}

// Output is one thing for the owner to do. Its slices are the reader's.
type Output struct {
	Kind         OutputKind
	ID           uint32
	Function     uint32
	Peer         PeerID
	Msg          []byte
	Service      uint64
	Tenant       uint32
	LocalGID     [16]byte
	PeerGID      [16]byte
	PeerFunction uint32
	PeerQPN      uint32
	Ordered      bool // of an OutRequest
	Params       *Params
	Reason       Reason
	Use          Use
	SA           SA
	Refused      Refused
	Time         uint64 // PSP clock of the peer, ps

	CompleteInError bool   // of an OutRequest
	Consumer        uint32 // the listener's reason in Reject, with ReasonConsumer
	Private         []byte
}

// Source returns a number for the function that requests a connection, which no function of another
// peer has.
func (o *Output) Source() uint32 { return uint32(o.Peer)<<16 | o.PeerFunction&0xffff }

// Errors of Manager calls. They are wrapped with the object they are about.
var (
	ErrNoRoute     = errors.New("no NIC offers this GID in this tenant")
	ErrPeerDown    = errors.New("the link to the peer NIC is down")
	ErrNotLocal    = errors.New("the GID does not belong to this function in this tenant")
	ErrLimit       = errors.New("limit reached")
	ErrNotFound    = errors.New("no such connection")
	ErrState       = errors.New("not possible in the connection's state")
	ErrInUse       = errors.New("the service is already listened on")
	ErrInvalid     = errors.New("invalid argument")
	ErrBeforeHello = errors.New("message before Hello")
	ErrProtocol    = errors.New("protocol violation by the peer")
)

// Reason says why a connection was refused or ended. Reasons below 32 are sent in REJ and DREQ; the
// others are determined locally.
type Reason uint16

// Reasons.
const (
	ReasonNone          Reason = 0
	ReasonConsumer      Reason = 1 // the listener rejected
	ReasonNoListener    Reason = 2
	ReasonTenant        Reason = 3 // tenant not shared with this peer
	ReasonGID           Reason = 4 // GID unknown, or not of the named function
	ReasonNoResources   Reason = 5
	ReasonTimeout       Reason = 6
	ReasonStale         Reason = 7 // the other side does not know the connection
	ReasonCanceled      Reason = 8
	ReasonFunctionGone  Reason = 9
	ReasonInvalid       Reason = 10 // a value out of range
	ReasonDisconnect    Reason = 11 // requested by the peer's function
	reasonWireEnd       Reason = 12
	ReasonPeerDown      Reason = 32
	ReasonPeerRestarted Reason = 33
	ReasonLocal         Reason = 34 // requested by our function
	ReasonPeerRemoved   Reason = 35
)

var reasonText = map[Reason]string{
	ReasonNone:          "none",
	ReasonConsumer:      "rejected by the listener",
	ReasonNoListener:    "nobody listens on this service",
	ReasonTenant:        "tenant not shared with this NIC",
	ReasonGID:           "GID unknown or not of this function",
	ReasonNoResources:   "no resources",
	ReasonTimeout:       "timed out",
	ReasonStale:         "connection unknown to the peer",
	ReasonCanceled:      "canceled by the peer",
	ReasonFunctionGone:  "function gone",
	ReasonInvalid:       "invalid value",
	ReasonDisconnect:    "disconnected by the peer",
	ReasonPeerDown:      "link to the peer NIC is down",
	ReasonPeerRestarted: "peer NIC restarted",
	ReasonLocal:         "closed locally",
	ReasonPeerRemoved:   "peer NIC removed",
}

func (r Reason) String() string {
	if s, ok := reasonText[r]; ok {
		return s
	}
	return fmt.Sprintf("reason(%d)", uint16(r))
}

// onWire reports whether the reason may be in a message.
func (r Reason) onWire() bool { return r > ReasonNone && r < reasonWireEnd }

// Stats counts events since New.
type Stats struct {
	Sent, Received       uint64 // messages
	SendDropped          uint64 // messages not sent since the link was down
	Malformed            uint64 // messages malformed, illegal, or before Hello
	TenantRefused        uint64 // REQ for a tenant not shared with the peer
	GIDRefused           uint64 // REQ whose GID does not belong to the function that it names
	NoListener           uint64
	LimitRefused         uint64 // REQ refused by a limit
	CutShort             uint64 // TIME-WAITs that ended early, for another connection of the function
	DuplicateREQ         uint64
	BadREP               uint64 // REP with an MTU, shard, order or error mode that we did not offer
	UnknownConnection    uint64 // messages for connections not in the table
	IllegalEvents        uint64 // events without a transition
	Retries, Timeouts    uint64
	Established          uint64
	Disconnected         uint64
	PeerRestarts         uint64
	KeysReceived         uint64 // new SAs of peers, in offers and REKEY
	Rekeyed              uint64 // our new SAs that a peer confirmed
	RekeyRequests        uint64 // requests of peers whose SA is nearly used up
	SPIRefused           uint64 // packets of connections with a wrong SPI
	RouteTenantRefused   uint64 // offers in a tenant not shared with the peer
	RouteFunctionRefused uint64 // offers of a function of another host
	RouteAddressRefused  uint64 // offers of an address that the peer may not have
	RouteConflicts       uint64 // offers of an address that someone else has
}

// Config is the configuration of a Manager. Zero durations and limits mean the default.
type Config struct {
	Host HostID
	MTU  int // largest ULP part (headers and data) of one packet, bytes; default 4096

	ReqTimeout    Time // between two REQ; default 1 s
	ReqRetries    int  // number of repetitions of REQ; default 7
	RepTimeout    Time // between two REP; default 1 s
	RepRetries    int  // default 7
	DreqTimeout   Time // between two DREQ; default 500 ms
	DreqRetries   int  // default 3
	AcceptTimeout Time // for the listener to accept or reject; default 30 s
	RekeyTimeout  Time // between two REKEY or REKEYREQ; default 1 s
	TimeWait      Time // a CID is not reused for this long; default 2 s

	MaxPerPeer     int // connections requested by one peer, in any state; default 8192
	MaxPerFunction int // connections of one function, in any state; default 2048
	MaxListeners   int // per function; default 256
	Backlog        int // requests to one function that it has not answered; a source may have no more than are left free; default 512
}

func or[T int | int64](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

// defaults returns the configuration with every zero replaced.
func (c Config) defaults() Config {
	const ms = 1_000_000
	or(&c.MTU, 4096)
	or(&c.ReqTimeout, 1000*ms)
	or(&c.ReqRetries, 7)
	or(&c.RepTimeout, 1000*ms)
	or(&c.RepRetries, 7)
	or(&c.DreqTimeout, 500*ms)
	or(&c.DreqRetries, 3)
	or(&c.AcceptTimeout, 30_000*ms)
	or(&c.RekeyTimeout, 1000*ms)
	or(&c.TimeWait, 2000*ms)
	or(&c.MaxPerPeer, 8192)
	or(&c.MaxPerFunction, 2048)
	or(&c.MaxListeners, 256)
	or(&c.Backlog, 512)
	return c
}

func (c Config) check() error {
	if c.MTU < MinMTU || c.MTU > MaxMTU {
		return fmt.Errorf("cm: MTU %d: want %d to %d", c.MTU, MinMTU, MaxMTU)
	}
	for _, v := range []struct {
		name string
		v    int64
	}{
		{"ReqTimeout", c.ReqTimeout},
		{"ReqRetries", int64(c.ReqRetries)},
		{"RepTimeout", c.RepTimeout},
		{"RepRetries", int64(c.RepRetries)},
		{"DreqTimeout", c.DreqTimeout},
		{"DreqRetries", int64(c.DreqRetries)},
		{"AcceptTimeout", c.AcceptTimeout},
		{"RekeyTimeout", c.RekeyTimeout},
		{"TimeWait", c.TimeWait},
		{"MaxPerPeer", int64(c.MaxPerPeer)},
		{"MaxPerFunction", int64(c.MaxPerFunction)},
		{"MaxListeners", int64(c.MaxListeners)},
		{"Backlog", int64(c.Backlog)},
	} {
		if v.v < 0 {
			return fmt.Errorf("cm: %s %d: must not be negative", v.name, v.v)
		}
	}
	return nil
}

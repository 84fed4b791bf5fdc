package cm

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
)

// Time is in nanoseconds of the engine's monotonic clock, from which the PSP IV is also taken.
type Time = int64

// HostID identifies a NIC; it is the top byte of its functions' identifiers.
type HostID = uint8

// Limits of the protocol.
const (
	Version      = 2       // of the messages, and of the format of the connections that they set up
	MaxPrivate   = 64      // bytes of private data in REQ, REP and REJ
	MaxEndpoints = 2048    // functions that one Hello can offer
	MaxShards    = 16      // of a NIC
	MinMTU       = 256     // bytes; smallest MTU a connection is opened with
	MaxMTU       = 1 << 15 // bytes
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
	Peer   HostID
	Shard  uint8
	Tenant uint32
	Class  Class
}

// Compare defines an order of uses.
func (u Use) Compare(v Use) int {
	return cmp.Or(cmp.Compare(u.Peer, v.Peer), cmp.Compare(u.Tenant, v.Tenant), cmp.Compare(u.Class, v.Class), cmp.Compare(u.Shard, v.Shard))
}

func (u Use) String() string {
	return fmt.Sprintf("host %d, tenant %d, class %v, shard %d", u.Peer, u.Tenant, u.Class, u.Shard)
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
	ForgetSAs(peer HostID)
}

// Peer is a NIC that this one may talk to.
type Peer struct {
	Host     HostID
	Underlay netip.Addr // source and destination of its PSP packets
	Tenants  []uint32   // shared with it; all other tenants are refused
	// MayHave returns why the peer may not have an address of a shared tenant; "": it may. nil: it
	// may have any address.
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
	Peer         HostID // this NIC for a connection between its functions, which is not sealed
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
	OutSend         OutputKind = iota + 1 // send Msg to Peer, or give it to Receive if that is this host (ID and Function are 0)
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
	Peer         HostID
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

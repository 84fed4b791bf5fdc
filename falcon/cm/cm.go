package cm

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
)

// Time is in nanoseconds of the engine's monotonic clock, the same that the PSP
// IV is taken from.
type Time = int64

// HostID names a NIC; it is the top byte of its functions' identifiers.
type HostID = uint8

// Limits of the protocol.
const (
	Version      = 2       // of the messages, and of what the connections they make carry
	MaxPrivate   = 64      // bytes of private data in REQ, REP and REJ
	MaxEndpoints = 2048    // functions one Hello can offer
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
	Shard    uint8  // that has the function, below MaxShards
}

// SA is a receive security association as its owner hands it to the sender.
type SA struct {
	Version uint8 // PSP version 0–3
	SPI     uint32
	Key     []byte // 16 bytes for versions 0 and 2, 32 for 1 and 3
}

// Class says what an SA is for. It belongs to the SA, so a receiver knows it by
// the SPI, before it looks into the packet.
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

// Use is what an SA is for: what one shard of a NIC seals for another NIC, in a
// tenant and a class. Each shard has an SA of its own, so that no two of them
// can use a nonce twice. Peer is the other NIC. Shard is the one that seals: a
// shard of the peer for what we issue, one of ours for what we were given.
type Use struct {
	Peer   HostID
	Shard  uint8
	Tenant uint32
	Class  Class
}

// Compare gives uses an order.
func (u Use) Compare(v Use) int {
	return cmp.Or(cmp.Compare(u.Peer, v.Peer), cmp.Compare(u.Tenant, v.Tenant), cmp.Compare(u.Class, v.Class), cmp.Compare(u.Shard, v.Shard))
}

func (u Use) String() string {
	return fmt.Sprintf("host %d, tenant %d, class %v, shard %d", u.Peer, u.Tenant, u.Class, u.Shard)
}

// check says whether the SA is fit to be handed out.
func (s *SA) check() error {
	if s.Version > 3 || len(s.Key) != keyLen(s.Version) || s.SPI&^(1<<31) == 0 {
		return fmt.Errorf("version %d, SPI %#x, %d bytes of key: %w", s.Version, s.SPI, len(s.Key), ErrInvalid)
	}
	return nil
}

// Resources are what the Manager takes from its NIC.
type Resources interface {
	// AllocCID returns a free connection identifier (24 bits) whose top bits
	// name the shard of the function.
	AllocCID(function uint32) (uint32, error)
	// FreeCID takes a CID back. It is called once for each CID allocated.
	FreeCID(cid uint32)
	// RxSA returns our receive SA for what a shard of a peer seals. It is issued
	// at the first call and the same at later ones until Manager.Rekey named
	// another.
	RxSA(u Use) (SA, error)
	// ForgetSAs gives up the receive SAs of a peer whose process restarted: its
	// IV clock may have started over, and no IV may be used twice with a key.
	// The next RxSA issues a new one.
	ForgetSAs(peer HostID)
}

// Peer is one NIC this one may talk to.
type Peer struct {
	Host     HostID
	Underlay netip.Addr // where its PSP packets come from and go to
	Tenants  []uint32   // shared with it; it is refused all others
	// MayHave says why it may not have an address of a tenant that it shares; "": it may. nil: it may
	// have any.
	MayHave func(a Address) (why string)
}

// ConnectRequest describes the connection a function asks for.
type ConnectRequest struct {
	Function uint32
	Tenant   uint32
	QPN      uint32
	Service  uint64 // identifier a function at the other end listens on
	SGID     [16]byte
	DGID     [16]byte
	MTU      int // bytes of ULP headers and data per packet; 0: Config.MTU
	Ordered  bool
	IRD      uint8  // READs and atomics the function's queue pair takes at a time
	Private  []byte // at most MaxPrivate bytes

	CompleteInError bool // requests that fail do so alone (RDMA over Falcon §6.3)
}

// Params are what is needed to open the Falcon connection and to connect the
// queue pair.
type Params struct {
	ID           uint32
	Function     uint32
	Tenant       uint32
	QPN          uint32
	PeerQPN      uint32
	IRD, PeerIRD uint8  // READs and atomics each side takes at a time
	Peer         HostID // this NIC's own for a connection between its functions, which is not sealed
	PeerFunction uint32
	Shard        uint8 // that has the function
	PeerShard    uint8 // that has the peer's function
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
	Active     bool   // this side asked

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
	OutRekeyed                            // Use, SA.SPI, Time: the peer seals with it
	OutPorts                              // Peer: what it says of its ports has changed, see PortsOf
	OutRefused                            // Peer, Refused: it tells of addresses that it does not get
	OutRekeyWanted                        // Use, SA.SPI: the peer has used up this SA (0: has none)
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
	Consumer        uint32 // what the listener gave Reject, with ReasonConsumer
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

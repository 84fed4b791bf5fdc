package falcon

import (
	"math"

	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// ConnConfig are the parameters the connection manager agreed on.
type ConnConfig struct {
	LocalCID, RemoteCID           CID
	LocalFunction, RemoteFunction uint32 // Destination Function expected on receipt, and put on the wire; 24 bits
	Protocol                      wire.Protocol
	Ordered                       bool
	MTU                           int // largest ULP part (headers and data) of one packet, bytes

	TxDataPSN, TxReqPSN, RxDataPSN, RxReqPSN uint32 // initial PSNs
	TxRSN, RxRSN                             uint32 // initial RSNs

	Credits     *credit.Node // function's node; nil: Config.Credits of the engine
	CreditLimit credit.Cost  // limit of the connection's own node below it; zero: no node of its own
	// NoFlowControl is for ULP queues that share connections (Falcon §8.2.3): a Push or Pull
	// without room is not refused with ErrXoff but completes at once with CmplLocalRsrc, or with
	// CmplUlpCdtErr if waiting would not help.
	NoFlowControl bool
	// GiveUp overrides Profile.GiveUp if not 0, and Profile.TxnTimeout where it is longer. With
	// Forever nothing times out.
	GiveUp Time
	User   any // the ULP's own
}

// Forever is a ConnConfig.GiveUp without limit.
const Forever Time = math.MaxInt64

// Conn is one end of a connection. All methods belong to the engine's owner.
type Conn struct{ receiver }

// What a connection does is in layers, each a type that has the one below it embedded. A layer
// knows those below it, and the compiler sees to it that it calls nothing above:
//
//	Conn ▶ receiver ▶ sender ▶ transactions ▶ delivery ▶ outcome ▶ state

// state is the lowest layer: what most of them need to know, what the connections of an engine
// share, and what waits to be sent.
//
// Fields are in the order of their use, so that a packet touches few cache lines when thousands of
// connections take turns, and Prefetch knows them. Lines are of 64 bytes; the allocator puts 8 of
// its own before the first.
type state struct {
	// Line 0: who it is, and what it has to do.
	e                             *Engine
	credits                       *credit.Node // nil: unlimited
	share                         *share       // of its function in the scheduler
	localCID, remoteCID           CID
	localFunction, remoteFunction uint32
	mtu                           uint16
	ackCount                      uint16 // halves of a packet not acknowledged (Falcon §9.1.6)
	protocol                      wire.Protocol
	busy                          uint8 // what waits to be sent
	queued                        uint8 // classes in whose queue it is
	ordered                       bool
	closed                        bool
	draining, drained             bool
	waiting                       bool // refused with ErrXoff
	offered                       bool // EvCredit was sent for waitingCost, and nothing issued since
	eventOut                      bool // an event is on its way through the RUE
	path                          uint8

	// Line 1: windows (§9.1.1, §9.2.1) and RSNs of the initiator (§8.4.1).
	reqTx, dataTx    txWindow
	reqRx, dataRx    rxWindow
	baseRSN, nextRSN uint32

	// Lines 2 and 3: the receiver, its acknowledgements and the target (§8.5.1).
	dataBits               rxBitmaps
	targetBase, targetNext uint32 // BRSN, NRSN
	lastT1, lastT2         uint32
	requests, responses    int32 // target transactions: not answered, answered but not acknowledged
	ecn                    uint16
	lastHops               uint8
	hold                   bool               // ordered: RSN targetNext was RNRed, nothing later is delivered
	holdRNR                uint8              // with this timeout
	ackTimer               timer.Handle       // of a coalesced acknowledgement
	rxs                    ring.Window[rxTxn] // by RSN
	reqBits                wire.Bitmap128     // of reqRx: received is acknowledged
	cells                  int32              // of the pool
	random                 uint32
	lastRNR                Time // RNR NACK received
	paceTimer              timer.Handle
	dataFirst              bool // retransmit pull data before initiator packets next time

	// Lines 4 and 5: what the initiator has under way, congestion control, and when the next packet
	// may go.
	txns        ring.Window[txn] // by RSN
	dataPackets ring.Window[txn] // by PSN
	cc          cc.State
	flightTimer timer.Handle // not later than the retransmission of what is in flight the longest
	txnTimer    timer.Handle // not later than the timeout of the oldest transaction
	arSpacing   uint32       // packets until the next AR
	acked       uint16       // packets since the last event to the RUE
	ipg         uint16       // gap while fcwnd < 1, TU
	nextSend    Time         // no packet before
	lastEvent   Time         // when the last one was raised
	lists       [connLists]list.List[txn]

	// Seldom used.
	reqPackets   ring.Window[txn]
	nacks        []nackEntry
	requestCells int32        // of cells: payload of the peer's requests
	reclaimTimer timer.Handle // not later than when something held for the peer may be reclaimed
	reclaimNext  uint32       // targetNext when that was looked at last
	nextConn     *Conn        // of connTable
	parked       int32        // transactions that have given back their credits
	parkRSN      uint32       // of the first of them, as far as is known
	cfg          ConnConfig
}

// Config returns the parameters of the connection.
func (c *Conn) Config() *ConnConfig { return &c.cfg }

// LocalCID is the CID the peer sends with.
func (c *Conn) LocalCID() CID { return c.localCID }

// RemoteCID is the CID of packets to the peer.
func (c *Conn) RemoteCID() CID { return c.remoteCID }

// User returns ConnConfig.User.
func (c *Conn) User() any { return c.cfg.User }

// SetUser replaces ConnConfig.User.
func (c *Conn) SetUser(u any) { c.cfg.User = u }

// Closed reports whether the connection has ended.
func (c *Conn) Closed() bool { return c.closed }

// Path is a number that changes whenever congestion control asks for another network path (Falcon
// §10.4).
func (c *Conn) Path() uint8 { return c.path }

// CID is a connection identifier of 24 bits, allocated by the receiver.
type CID = uint32

// nackEntry is a NACK that waits to be sent.
type nackEntry struct {
	psn     uint32
	code    wire.NackCode
	rnr     uint8
	ulpCode uint8
	request bool
}

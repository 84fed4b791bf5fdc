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

// ConnConfig holds the parameters that the connection managers agreed on.
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
	// NoFlowControl is for ULP queues that share connections (Falcon §8.2.3). A Push or Pull
	// without room does not fail with ErrXoff. It completes at once with CmplLocalRsrc, or with
	// CmplUlpCdtErr if waiting would not help.
	NoFlowControl bool
	// GiveUp, if not 0, overrides Profile.GiveUp, and Profile.TxnTimeout if that is shorter. With
	// Forever nothing times out.
	GiveUp Time
	User   any // for the ULP's use
}

// Forever is a value of ConnConfig.GiveUp that means no limit.
const Forever Time = math.MaxInt64

// Conn is one end of a connection. Only the engine's goroutine may call its methods.
type Conn struct{ receiver }

// A connection is built of layers. Each is a type that embeds the one below it, so a method of a
// layer can name only its own methods and those of the layers below, unless it goes through a
// *Conn:
//
// Conn ▶ receiver ▶ sender ▶ transactions ▶ delivery ▶ outcome ▶ state

// state is the lowest layer: the fields that most layers need, access to what the connections of an
// engine share, and what waits to be sent.
//
// Fields are ordered by use, so that a packet touches few cache lines when thousands of connections
// take turns. Prefetch depends on this order. Cache lines are 64 bytes; the allocator puts 8 bytes
// of its own before the first.
type state struct {
	// Line 0: identity, and what the connection has to do.
	e                             *Engine
	credits                       *credit.Node // nil: unlimited
	share                         *share       // its function's share in the scheduler
	localCID, remoteCID           CID
	localFunction, remoteFunction uint32
	mtu                           uint16
	ackCount                      uint16 // packets not acknowledged, counted in halves (Falcon §9.1.6)
	protocol                      wire.Protocol
	busy                          uint8 // what waits to be sent
	queued                        uint8 // bit set of the classes whose queue it is in
	ordered                       bool
	closed                        bool
	draining, drained             bool
	waiting                       bool // refused with ErrXoff
	offered                       bool // EvCredit was sent for waitingCost, and nothing was issued since
	eventOut                      bool // an event of the connection is at the RUE
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
	hold                   bool               // ordered: the ULP was not ready for RSN targetNext, nothing later is delivered
	holdRNR                uint8              // timeout index that the ULP gave
	ackTimer               timer.Handle       // of a coalesced acknowledgement
	rxs                    ring.Window[rxTxn] // by RSN
	reqBits                wire.Bitmap128     // of reqRx: a received pull request counts as acknowledged
	cells                  int32              // cells of the pool that the connection holds
	random                 uint32
	lastRNR                Time // when the last RNR NACK was received
	paceTimer              timer.Handle
	dataFirst              bool // retransmit pull data before initiator packets next time

	// Lines 4 and 5: the initiator's transactions, congestion control, and when the next packet may
	// be sent.
	txns        ring.Window[txn] // by RSN
	dataPackets ring.Window[txn] // by PSN
	cc          cc.State
	flightTimer timer.Handle // fires no later than the retransmission of the packet longest in flight
	txnTimer    timer.Handle // fires no later than the timeout of the oldest transaction
	arSpacing   uint32       // packets until the next AR
	acked       uint16       // packets since the last event to the RUE
	ipg         uint16       // gap while fcwnd < 1, TU
	nextSend    Time         // no packet is sent before this time
	lastEvent   Time         // when the last event to the RUE was raised
	lists       [connLists]list.List[txn]

	// Seldom used.
	reqPackets   ring.Window[txn]
	nacks        []nackEntry
	requestCells int32        // how many of cells hold payload of the peer's requests
	reclaimTimer timer.Handle // fires no later than when something held for the peer may be reclaimed
	reclaimNext  uint32       // targetNext when the reclaim timer last fired
	nextConn     *Conn        // next connection in its chain of connTable
	parked       int32        // transactions that have given back their credits
	parkRSN      uint32       // RSN of the first of them; may be lower
	cfg          ConnConfig
}

// Config returns the parameters of the connection.
func (c *Conn) Config() *ConnConfig { return &c.cfg }

// LocalCID returns the CID that the peer puts in its packets.
func (c *Conn) LocalCID() CID { return c.localCID }

// RemoteCID returns the CID of packets to the peer.
func (c *Conn) RemoteCID() CID { return c.remoteCID }

// User returns ConnConfig.User.
func (c *Conn) User() any { return c.cfg.User }

// SetUser replaces ConnConfig.User.
func (c *Conn) SetUser(u any) { c.cfg.User = u }

// Closed reports whether the connection has ended.
func (c *Conn) Closed() bool { return c.closed }

// Path returns a number that changes whenever congestion control asks for another network path
// (Falcon §10.4).
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

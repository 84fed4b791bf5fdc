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
//
// Fields are in the order of their use, so that a packet touches few cache lines when thousands of
// connections take turns, and Prefetch knows them. Lines are of 64 bytes; the allocator puts 8 of
// its own before the first.
type Conn struct {
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

	heard    heard // what the acknowledgements say about when packets arrive
	probes   uint8 // tail loss probes since the peer was last heard of
	lively   Time  // an acknowledgement was received, or a probe sent
	longPath longPath

	// Seldom used.
	reqPackets   ring.Window[txn]
	nacks        []nackEntry
	requestCells int32 // of cells: payload of the peer's requests
	retransmits  uint64
	reclaimTimer timer.Handle // not later than when something held for the peer may be reclaimed
	reclaimNext  uint32       // targetNext when that was looked at last
	waitingCost  credit.Cost
	nextConn     *Conn // of connTable
	cfg          ConnConfig
}

// Open adds a connection. It fails if the CID is in use, a value is impossible or MaxConns are
// open.
func (e *Engine) Open(now Time, cfg ConnConfig) (*Conn, error) {
	switch {
	case cfg.LocalCID > wire.MaxCID:
		return nil, configError("LocalCID", cfg.LocalCID, "use 24 bits")
	case cfg.RemoteCID > wire.MaxCID:
		return nil, configError("RemoteCID", cfg.RemoteCID, "use 24 bits")
	case cfg.LocalFunction > wire.MaxFunction:
		return nil, configError("LocalFunction", cfg.LocalFunction, "use 24 bits")
	case cfg.RemoteFunction > wire.MaxFunction:
		return nil, configError("RemoteFunction", cfg.RemoteFunction, "use 24 bits")
	case !cfg.Protocol.Valid():
		return nil, configError("Protocol", cfg.Protocol, "use RDMA or NVMe")
	case cfg.MTU < 1 || cfg.MTU > e.cfg.CellBytes || cfg.MTU > 0xffff:
		return nil, configError("MTU", cfg.MTU, "use 1 to Config.CellBytes, at most 65535")
	case cfg.GiveUp < 0:
		return nil, configError("GiveUp", cfg.GiveUp, "use 0 for the profile's value")
	case e.conns.find(cfg.LocalCID) != nil:
		return nil, ErrCIDInUse
	case e.conns.n >= e.cfg.MaxConns:
		return nil, ErrTooManyConns
	}
	c := &Conn{
		e: e, cfg: cfg, credits: cfg.Credits, random: cfg.LocalCID<<8 | 1,
		localCID: cfg.LocalCID, remoteCID: cfg.RemoteCID, localFunction: cfg.LocalFunction, remoteFunction: cfg.RemoteFunction,
		mtu: uint16(cfg.MTU), protocol: cfg.Protocol, ordered: cfg.Ordered,
	}
	if c.credits == nil {
		c.credits = e.cfg.Credits
	}
	if cfg.CreditLimit != (credit.Cost{}) {
		c.credits = credit.New(c.credits, cfg.CreditLimit)
	}
	if c.cfg.GiveUp == 0 {
		c.cfg.GiveUp = e.profile.GiveUp
	}
	e.profile.CC.Init(&c.cc)
	c.baseRSN, c.nextRSN = cfg.TxRSN, cfg.TxRSN
	c.targetBase, c.targetNext = cfg.RxRSN, cfg.RxRSN
	c.reqTx.base, c.reqTx.next = cfg.TxReqPSN, cfg.TxReqPSN
	c.dataTx.base, c.dataTx.next = cfg.TxDataPSN, cfg.TxDataPSN
	c.reqRx.base, c.reqRx.size = cfg.RxReqPSN, wire.RequestWindow
	c.dataRx.base, c.dataRx.size = cfg.RxDataPSN, wire.DataWindow
	c.lastEvent = longAgo
	c.drawSpacing()
	e.conns.add(c)
	e.join(c)
	return c, nil
}

// expired implements timerOwner.
func (c *Conn) expired(now Time, kind timer.Kind) {
	switch kind {
	case timerFlight:
		c.onFlightTimer(now)
	case timerPace:
		c.kick()
	case timerTxn:
		c.onTxnTimer(now)
	case timerAck:
		c.ackSoon()
	case timerReclaim:
		c.onReclaimTimer(now)
	}
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

func (c *Conn) window(kind TxnKind) *txWindow {
	if kind == TxnPull {
		return &c.reqTx
	}
	return &c.dataTx
}

// packets are those of the window, by PSN.
func (c *Conn) packets(w *txWindow) *ring.Window[txn] {
	if w == &c.reqTx {
		return &c.reqPackets
	}
	return &c.dataPackets
}

func (c *Conn) take(cost *credit.Cost) bool { return c.credits == nil || c.credits.Take(cost) }

// returnCredits gives back and clears cost.
func (c *Conn) returnCredits(cost *credit.Cost) {
	if *cost == (credit.Cost{}) {
		return
	}
	if c.credits != nil && c.credits.Return(cost) != nil {
		c.e.stats.CreditErrors++
	}
	*cost = credit.Cost{}
	c.e.recheck = true
}

func (c *Conn) takeOne(i credit.Counter) bool { return c.credits == nil || c.credits.TakeOne(i, false) }

func (c *Conn) returnOne(i credit.Counter) {
	if c.credits != nil && !c.credits.ReturnOne(i) {
		c.e.stats.CreditErrors++
	}
}

// nextRandom is a small xorshift generator: only the spacing of AR bits depends on it.
func (c *Conn) nextRandom() uint32 {
	c.random ^= c.random << 13
	c.random ^= c.random >> 17
	c.random ^= c.random << 5
	return c.random
}

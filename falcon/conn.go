package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
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
	// NoFlowControl is for ULP queues that share connections (Falcon §8.2.3): a Push or Pull without room is not refused
	// with ErrXoff but completes at once with CmplLocalRsrc, or with CmplUlpCdtErr if waiting would not help.
	NoFlowControl bool
	Weight        int  // new packets of a kind the connection may send in its turn, 1 to 255; 0: 1
	GiveUp        Time // overrides Profile.GiveUp if not 0
	User          any  // the ULP's own
}

// Conn is one end of a connection. All methods belong to the engine's owner.
type Conn struct {
	e       *Engine
	cfg     ConnConfig
	credits *credit.Node // nil: unlimited
	cc      cc.State
	ipg     Time // gap while fcwnd < 1
	closed  bool

	draining, drained bool

	// Initiator (Falcon §8.4.1) and transmitter (§9.1.1).
	baseRSN, nextRSN uint32
	txns             ring[txn]
	fresh            [3]txnList // by TxnKind: not sent yet
	retx             [3]txnList // by TxnKind: to be sent again, in PSN order
	reqTx, dataTx    txWindow
	txnTimer         timer
	lastRNR          Time // RNR NACK received
	paceTimer        timer
	nextSend         Time    // no packet before
	flight           txnList // sent and neither acknowledged nor refused, the longest ago first
	flightTimer      timer   // not later than its head's retransmission
	acked            uint16  // packets since the last event to the RUE
	eventOut         bool    // an event is on its way through the RUE
	lastEvent        Time    // when the last one was raised
	arSpacing        uint32  // packets until the next AR
	random           uint32
	path             uint8
	dataFirst        bool // retransmit pull data before initiator packets next time

	// Target (Falcon §8.5.1) and receiver (§9.2.1).
	targetBase, targetNext uint32 // BRSN, NRSN
	rxs                    ring[rxTxn]
	reqRx, dataRx          rxWindow
	requests, responses    int // target transactions: not answered, answered but not acknowledged
	cells                  int
	hold                   bool  // ordered: RSN targetNext was RNRed, nothing later is delivered
	holdRNR                uint8 // with this timeout
	lastT1, lastT2         uint32
	lastHops               uint8
	ecn                    uint16

	// Acknowledgements (§9.1.6, §9.1.7).
	ackTimer         timer
	ackNext, ackPrev *Conn // list of connections whose ackTimer runs
	inAckList        bool
	ackCount         int // halves of a packet
	ackNow           bool
	nacks            []nackEntry

	// Scheduler.
	queued      [numClasses]bool
	nextIn      [numClasses]*Conn
	turn        [numClasses]uint8 // packets sent in the turn under way
	waiting     bool              // refused with ErrXoff
	waitingCost credit.Cost
	nextWaiting *Conn
}

// Open adds a connection. It fails if the CID is in use, a value is impossible or MaxConns are open.
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
	case cfg.Weight < 0 || cfg.Weight > 255:
		return nil, configError("Weight", cfg.Weight, "use 1 to 255, or 0 for 1")
	case cfg.GiveUp < 0:
		return nil, configError("GiveUp", cfg.GiveUp, "use 0 for the profile's value")
	case e.conns[cfg.LocalCID] != nil:
		return nil, ErrCIDInUse
	case len(e.conns) >= e.cfg.MaxConns:
		return nil, ErrTooManyConns
	}
	c := &Conn{e: e, cfg: cfg, credits: cfg.Credits, random: cfg.LocalCID<<8 | 1}
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
	c.txnTimer.conn, c.txnTimer.kind = c, timerTxn
	c.paceTimer.conn, c.paceTimer.kind = c, timerPace
	c.ackTimer.conn, c.ackTimer.kind = c, timerAck
	c.flightTimer.conn, c.flightTimer.kind = c, timerFlight
	c.lastEvent = longAgo
	c.drawSpacing()
	e.conns[cfg.LocalCID] = c
	return c, nil
}

// Config returns the parameters of the connection.
func (c *Conn) Config() *ConnConfig { return &c.cfg }

// User returns ConnConfig.User.
func (c *Conn) User() any { return c.cfg.User }

// SetUser replaces ConnConfig.User.
func (c *Conn) SetUser(u any) { c.cfg.User = u }

// Closed reports whether the connection has ended.
func (c *Conn) Closed() bool { return c.closed }

// Path is a number that changes whenever congestion control asks for another network path (Falcon §10.4).
func (c *Conn) Path() uint8 { return c.path }

func (c *Conn) window(kind TxnKind) *txWindow {
	if kind == TxnPull {
		return &c.reqTx
	}
	return &c.dataTx
}

func (c *Conn) takeCredits(cost *credit.Cost) bool { return c.credits == nil || c.credits.Take(cost) }

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

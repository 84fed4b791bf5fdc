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

// Open adds a connection. It fails if the CID is in use, a value is out of range or Config.MaxConns
// connections are open.
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
	c := new(Conn)
	c.state = state{
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
	distance := uint8(min(max(e.profile.OOODistance, 1), wire.DataWindow))
	c.reqRx = rxWindow{base: cfg.RxReqPSN, size: wire.RequestWindow, distance: distance}
	c.dataRx = rxWindow{base: cfg.RxDataPSN, size: wire.DataWindow, distance: distance}
	c.lastEvent = longAgo
	c.drawSpacing()
	e.conns.add(c)
	e.schedule.join(c)
	return c, nil
}

// Close ends the connection at once. Outstanding transactions complete with CmplDeadConn, and
// EvClosed is the last event. The peer is not told; that is the connection manager's work.
func (c *Conn) Close(now Time) {
	if !c.closed {
		c.shutdown(CmplAck, CloseLocal)
	}
}

// Abort ends the connection like Close, but for a given reason: EvClosed has code CmplDeadConn and
// that reason.
func (c *Conn) Abort(now Time, reason CloseReason) {
	if !c.closed {
		c.shutdown(CmplDeadConn, reason)
	}
}

// Drain lets the connection finish the transactions in progress. From now on Push and Pull fail
// with ErrDraining. EvDrained reports when it is safe to call Close: all transactions of this side
// are done, the peer's requests are answered, and the last acknowledgement has been sent. Requests
// of the peer are served until then; the peer stops sending them when the connection managers have
// agreed on it.
func (c *Conn) Drain(now Time) {
	c.draining = true
	c.checkDrained()
}

// fail ends a connection whose peer does not answer.
func (c *outcome) fail() {
	c.shutdown(CmplDeadConn, CloseResync)
}

func (c *outcome) shutdown(code Completion, reason CloseReason) {
	e := c.e
	e.stats.ConnsClosed[reason]++
	c.closed = true // nothing is sent or armed from here on
	e.conns.remove(c.self())
	e.schedule.part(c.self())
	e.wheel.Stop(&c.txnTimer)
	e.wheel.Stop(&c.paceTimer)
	e.wheel.Stop(&c.flightTimer)
	e.wheel.Stop(&c.ackTimer)
	e.wheel.Stop(&c.reclaimTimer)

	for rsn := c.baseRSN; rsn != c.nextRSN; rsn++ {
		t := c.txns.Get(rsn)
		if t == nil || t.done {
			continue
		}
		if t.resync == 0 {
			t.code = CmplDeadConn
		}
		c.complete(t, t.code)
	}
	for _, w := range [...]*txWindow{&c.reqTx, &c.dataTx} {
		for psn := w.base; psn != w.next; psn++ {
			if t := c.packetAt(w, psn); t != nil {
				c.packets(w).Clear(psn)
				c.abandon(t)
			}
		}
		w.base = w.next
	}
	for kind := range TxnPullData + 1 {
		for t := c.fresh(kind); t != nil; t = c.fresh(kind) {
			c.abandon(t)
		}
	}
	for t := e.waiting.stalled.First(); t != nil; {
		next := t.place.Next()
		if t.conn == c.self() {
			c.abandon(t)
		}
		t = next
	}
	for rx := range c.rxs.All() {
		if rx != doneRx {
			c.putRx(rx)
		}
	}
	c.rxs = ring.Window[rxTxn]{}
	c.requests = 0
	c.nacks, c.busy = nil, 0
	u := c.emit(EvClosed)
	u.ev.Code, u.ev.Reason = code, reason
	e.waiting.recheck = true
}

// abandon ends the packet of a transaction whose connection has closed. The initiator's
// transactions were already completed.
func (c *outcome) abandon(t *txn) {
	t.unlink()
	c.e.wheel.Stop(&t.timer)
	t.packetDone = true
	if t.kind == TxnPullData {
		c.responseDone(t, CmplDeadConn)
		return
	}
	c.release(t)
}

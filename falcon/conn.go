package falcon

import (
	"math"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/ring"
)

// ConnConfig holds the parameters that the connection managers agreed on.
type ConnConfig struct {
	LocalCID, RemoteCID           CID
	LocalFunction, RemoteFunction uint32 // Destination Function expected on receipt, and put on the wire; 24 bits
	MTU                           int    // largest ULP part (headers and data) of one packet, bytes, at most MaxMTU
	Protocol                      wire.Protocol
	Ordered                       bool

	TxDataPSN, TxReqPSN, RxDataPSN, RxReqPSN uint32 // initial PSNs
	TxRSN, RxRSN                             uint32 // initial RSNs

	Credits *credit.Node // charged by the connection; nil: Config.Credits of the engine
	// GiveUp, if not 0, overrides Profile.GiveUp, and Profile.TxnTimeout if that is shorter. With
	// Forever nothing times out.
	GiveUp Time
	User   any // for the ULP's use
}

// MaxMTU is the largest MTU of a connection: the length fields of packets have 16 bits.
const MaxMTU = 1<<16 - 1

// Forever is a value of ConnConfig.GiveUp that means no limit.
const Forever Time = math.MaxInt64

// Conn is one end of a connection. Only the engine's goroutine may call its methods.
//
// It consists of parts with their own state and methods. A part has its neighbours by name
// (ini.flight, tgt.rx). Through its pointer to the connection it uses only what belongs to the whole:
// configuration, engine, credits, events and place in the scheduler. Conn's own methods do what takes
// several parts: they write a packet, receive an acknowledgement, close the connection.
//
// Fields, here and in the parts, are ordered by use, so that a packet touches few cache lines when
// thousands of connections take turns. Prefetch depends on this order, and
// TestAPacketTouchesFewLines holds it. Cache lines are 64 bytes; the allocator puts 8 bytes of its
// own before the first.
type Conn struct {
	e      *Engine
	share  *share // its function's share in the scheduler
	busy   uint8  // what waits to be sent: want bits
	queued uint8  // bit set of the classes whose queue it is in

	closed            bool
	draining, drained bool
	limit             uint16 // largest ULP part that the network carries (Limit); 0: the MTU

	cfg ConnConfig

	nextConn *Conn // next connection in its chain of connTable

	tx           sender    // what waits to be sent
	cells        int32     // cells of the pool that the connection holds
	requestCells int32     // how many of them hold payload of the peer's requests
	rx           receiver  // what arrived and how it is acknowledged
	credits      credits   // what its transactions are charged to
	target       target    // the peer's requests
	flight       flight    // what was sent and not acknowledged, congestion control
	initiator    initiator // this side's requests
}

// Config returns the parameters of the connection.
func (c *Conn) Config() *ConnConfig { return &c.cfg }

// LocalCID returns the CID that the peer puts in its packets.
func (c *Conn) LocalCID() CID { return c.cfg.LocalCID }

// RemoteCID returns the CID of packets to the peer.
func (c *Conn) RemoteCID() CID { return c.cfg.RemoteCID }

// User returns ConnConfig.User.
func (c *Conn) User() any { return c.cfg.User }

// SetUser replaces ConnConfig.User.
func (c *Conn) SetUser(u any) { c.cfg.User = u }

// Closed reports whether the connection has ended.
func (c *Conn) Closed() bool { return c.closed }

// Path returns a number that changes whenever congestion control asks for another network path
// (Falcon §10.4).
func (c *Conn) Path() uint8 { return c.flight.cc.path }

// CID is a connection identifier of 24 bits, allocated by the receiver.
type CID = uint32

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
	case cfg.MTU < 1 || cfg.MTU > MaxMTU:
		return nil, configError("MTU", cfg.MTU, "use 1 to 65535")
	case cfg.GiveUp < 0:
		return nil, configError("GiveUp", cfg.GiveUp, "use 0 for the profile's value")
	case e.conns.find(cfg.LocalCID) != nil:
		return nil, ErrCIDInUse
	case e.conns.n >= e.cfg.MaxConns:
		return nil, ErrTooManyConns
	}
	c := &Conn{e: e, cfg: cfg, credits: credits{node: cfg.Credits, e: e}}
	c.tx.conn, c.tx.flight = c, &c.flight
	c.rx.conn = c
	c.target.conn, c.target.rx = c, &c.rx
	c.flight.conn, c.flight.target, c.flight.initiator = c, &c.target, &c.initiator
	c.initiator.conn, c.initiator.rx, c.initiator.flight = c, &c.rx, &c.flight
	if c.credits.node == nil {
		c.credits.node = e.cfg.Credits
	}
	if c.cfg.GiveUp == 0 {
		c.cfg.GiveUp = e.profile.GiveUp
	}
	e.profile.CC.Init(&c.flight.cc.state)
	c.initiator.base, c.initiator.next = cfg.TxRSN, cfg.TxRSN
	c.target.base, c.target.next = cfg.RxRSN, cfg.RxRSN
	c.flight.requests.base, c.flight.requests.next = cfg.TxReqPSN, cfg.TxReqPSN
	c.flight.data.base, c.flight.data.next = cfg.TxDataPSN, cfg.TxDataPSN
	distance := uint8(min(max(e.profile.OOODistance, 1), wire.DataWindow))
	c.rx.requests = rxWindow{base: cfg.RxReqPSN, size: wire.RequestWindow, distance: distance}
	c.rx.data = rxWindow{base: cfg.RxDataPSN, size: wire.DataWindow, distance: distance}
	c.flight.cc.lastEvent = longAgo
	c.tx.random = cfg.LocalCID<<8 | 1
	c.tx.drawSpacing()
	e.conns.add(c)
	e.schedule.add(c)
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

// Limit says that the network carries no packet to the peer with more than mtu bytes of ULP headers and
// data, which may be less than the MTU of the connection, and may be more than before. EvLimit tells the
// ULP. What it sends from then on should be as short; a longer packet that it began before cannot be made
// shorter. If one of these has to be sent again, the connection ends with CloseMTU.
func (c *Conn) Limit(mtu int) {
	if mtu = min(max(mtu, 1), MaxMTU); c.closed || int(c.limit) == mtu {
		return
	}
	c.limit = uint16(mtu)
	c.emit(EvLimit).ev.Length = mtu
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

// shutdown ends the connection, and every transaction with it.
func (c *Conn) shutdown(code Completion, reason CloseReason) {
	e := c.e
	e.stats.ConnsClosed[reason]++
	c.closed = true // nothing is sent or armed from here on
	e.conns.remove(c)
	e.schedule.remove(c)
	e.wheel.Stop(&c.initiator.timer)
	e.wheel.Stop(&c.tx.timer)
	e.wheel.Stop(&c.flight.timer)
	e.wheel.Stop(&c.rx.timer)
	e.wheel.Stop(&c.target.timer)

	for rsn := c.initiator.base; rsn != c.initiator.next; rsn++ {
		t := c.initiator.txns.Get(rsn)
		if t == nil || t.done {
			continue
		}
		if t.resync == 0 {
			t.code = CmplDeadConn
		}
		c.initiator.complete(t, t.code)
	}
	for _, w := range [...]*txWindow{&c.flight.requests, &c.flight.data} {
		for psn := w.base; psn != w.next; psn++ {
			if t := w.at(psn); t != nil {
				w.packets.Clear(psn)
				c.abandon(t)
			}
		}
		w.base = w.next
	}
	for kind := range TxnPullData + 1 {
		for t := c.tx.firstUnsent(kind); t != nil; t = c.tx.firstUnsent(kind) {
			c.abandon(t)
		}
	}
	for t := e.waiting.stalled.First(); t != nil; {
		next := t.place.Next()
		if t.conn == c {
			c.abandon(t)
		}
		t = next
	}
	for req := range c.target.pending.All() {
		if req != doneRequest {
			c.putRequest(req)
		}
	}
	c.target.pending = ring.Window[request]{}
	c.target.unanswered = 0
	c.rx.nacks, c.busy = nil, 0
	u := c.emit(EvClosed)
	u.ev.Code, u.ev.Reason = code, reason
	e.waiting.recheck = true
}

// abandon ends the packet of a transaction whose connection has closed. The initiator's
// transactions were already completed.
func (c *Conn) abandon(t *txn) {
	t.unlink()
	c.e.wheel.Stop(&t.timer)
	t.packetDone = true
	if t.kind == TxnPullData {
		c.target.responseDone(t, CmplDeadConn)
		return
	}
	c.initiator.release(t)
}

// checkDrained is called whenever a transaction, request or acknowledgement of the connection has
// ended.
func (c *Conn) checkDrained() {
	if c.draining {
		c.endDrain()
	}
}

// endDrain emits EvDrained if a draining connection has nothing left to do.
func (c *Conn) endDrain() {
	if c.drained || c.closed {
		return
	}
	if c.initiator.base != c.initiator.next || c.flight.requests.inFlight()+c.flight.data.inFlight() != 0 || c.target.unanswered+c.target.responses != 0 {
		return
	}
	if c.rx.ackCount > 0 || c.busy&(wantAck|wantNack) != 0 {
		c.rx.ackSoon() // otherwise the peer would wait for it
		return
	}
	c.drained = true
	c.emit(EvDrained)
}

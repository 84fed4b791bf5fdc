package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// CID is a connection identifier of 24 bits, allocated by the receiver.
type CID = uint32

// ULP is the upper layer protocol of an engine.
type ULP interface {
	// Fill writes the ULP headers and data of a transaction's packet, for every transmission and
	// retransmission. len(dst) is the length promised at Push, Pull or RespondPull; Fill returns
	// the bytes written, fewer only for a pull response or a push that shrinks. An error ends a
	// push or pull with CmplLocalXlr, and a pull response with CmplRemoteErr at the peer; a Resync
	// packet fills the hole. Fill must not call the engine.
	Fill(c *Conn, kind TxnKind, tag uint64, dst []byte) (int, error)
}

// Config sizes an engine. Zero fields of sizes take the default named.
type Config struct {
	Profile    Profile
	Credits    *credit.Node // charged by connections without a node of their own; nil = no credit limit
	CreditCell int          // bytes of a buffer credit, default credit.DefaultCell
	MaxConns   int          // default 65536
	RxCells    int          // cells for pushes that wait for their turn, default 4096
	CellBytes  int          // size of a cell and so the largest MTU, default 4608
	TxContexts int          // transactions of all initiators, default 65536; pull responses have their own
	RxContexts int          // requests received and not answered, default 65536; above, in the red zone, only a connection's head of line is accepted
}

func (c *Config) setDefaults() {
	set := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	set(&c.CreditCell, credit.DefaultCell)
	set(&c.MaxConns, 65536)
	set(&c.RxCells, 4096)
	set(&c.CellBytes, 4608)
	set(&c.TxContexts, 65536)
	set(&c.RxContexts, 65536)
}

// Engine is a Falcon transport instance. See the package comment for how to drive it.
type Engine struct {
	cfg     Config
	profile Profile
	ulp     ULP
	conns   connTable
	wheel   timer.Wheel[timerOwner]
	cells   cellPool
	stats   Stats

	events   ring.Queue[upcall] // bounded by the contexts they stand for
	lastCell *cell              // payload of the event taken last

	txnFree   []*txn
	txnsInUse int
	responses int // of txnsInUse: pull responses
	rxFree    []*rxTxn
	rxInUse   int
	rxLevel   poolLevel // of rxInUse
	cellLevel poolLevel // of cells with requests

	queues  [numClasses]shareQueue
	urgent  bool              // the packet sent last was from an express list
	shares  map[uint32]*share // of functions with open connections
	weights map[uint32]int    // of functions, where it is not 1
	arbiter arbiter

	waiting    ring.Queue[*Conn] // connections refused with ErrXoff
	stalled    list.List[txn]    // pull responses that wait for credits
	offered    []*Conn           // connections with EvCredit that did not issue yet
	holdCredit bool
	recheck    bool // something was freed since the waiting connections were last looked at

	rate       rateUpdate
	ack        wire.Ack      // the packet that is received, if it is one
	push       wire.PushData // the same
	hearing    hearing
	ackAfter   uint16 // halves of a packet after which a coalesced ACK goes
	prefetched uint32 // keeps the compiler from leaving out Prefetch
}

// NewEngine returns an engine for one ULP. It panics if the profile is impossible; check it with
// Profile.Check first when it comes from outside.
func NewEngine(cfg Config, ulp ULP) *Engine {
	cfg.setDefaults()
	if err := cfg.Profile.Check(); err != nil {
		panic(err)
	}
	e := &Engine{cfg: cfg, profile: cfg.Profile, ulp: ulp, ackAfter: uint16(wholePacket * cfg.Profile.AckCount)}
	e.rxLevel = newPoolLevel(&e.profile.RxPackets, cfg.RxContexts)
	e.cellLevel = newPoolLevel(&e.profile.RxBuffers, cfg.RxCells)
	e.rate = newRateUpdate(&e.profile)
	e.cells = cellPool{limit: cfg.RxCells, size: cfg.CellBytes}
	for i := range e.queues {
		e.queues[i].class = txClass(i)
		e.queues[i].round.Quantum = max(leastQuantum, e.profile.TurnBytes)
	}
	e.shares, e.weights = make(map[uint32]*share), make(map[uint32]int)
	return e
}

// Conn returns the open connection with that local CID, nil if there is none.
func (e *Engine) Conn(cid CID) *Conn { return e.conns.find(cid) }

// Deadline is the time Advance must be called next, math.MaxInt64 if no timer runs. It may be
// earlier than the next timer by less than its distance, never later.
func (e *Engine) Deadline() Time { return e.wheel.Deadline() }

// Advance runs all timers due. Afterwards Transmit may have packets and Next events.
func (e *Engine) Advance(now Time) {
	for owner, kind, ok := e.wheel.Expire(now); ok; owner, kind, ok = e.wheel.Expire(now) {
		owner.expired(now, kind)
	}
}

// expired implements timerOwner: a result of the Rate Update Engine comes into force.
func (e *Engine) expired(now Time, _ timer.Kind) { e.onRateTimer(now) }

// Next takes one upcall. It returns false when there is none. ev.Data is valid until the next call.
func (e *Engine) Next(ev *Event) bool {
	if e.lastCell != nil {
		e.putCell(e.lastCell)
		e.lastCell = nil
	}
	for {
		if e.events.Len() == 0 && !e.wakeWaiting() {
			*ev = Event{}
			return false
		}
		u := e.events.Pop()
		rx, k, gen := u.rx, u.cell, u.gen
		*ev = u.ev
		u.ev.Data, u.ev.Conn, u.cell, u.rx = nil, nil, nil, nil // the queue must not keep them alive
		if rx != nil && !rx.take(e, gen, ev) {
			continue
		}
		if k != nil {
			e.lastCell = k
		}
		return true
	}
}

// emit appends an upcall, whose other fields the caller sets.
func (e *Engine) emit(kind EventKind, c *Conn) *upcall {
	u := e.events.Push()
	*u = upcall{}
	u.ev.Kind, u.ev.Conn = kind, c
	return u
}

// HoldCredit keeps EvCredit back, so that what many packets free is looked at once, when it is let
// go.
func (e *Engine) HoldCredit(on bool) { e.holdCredit = on }

// CreditsChanged makes Next look again at the connections that wait for credits: call it when
// credits became available outside this engine, for example because a limit was raised, or when a
// connection that got EvCredit does not issue.
func (e *Engine) CreditsChanged() {
	for _, c := range e.offered {
		c.offered = false
	}
	e.recheck = true
}

func (e *Engine) newTxn(c *Conn, kind TxnKind) *txn {
	t := reuse(&e.txnFree)
	e.txnsInUse++
	if kind == TxnPullData {
		e.responses++
	}
	*t = txn{conn: c, kind: kind, firstSent: -1, bypassed: -1}
	return t
}

// putTxn releases a transaction that is in no list, ring or timer.
func (e *Engine) putTxn(t *txn) {
	t.conn.returnCredits(&t.cost)
	e.txnsInUse--
	if t.kind == TxnPullData {
		e.responses--
	}
	*t = txn{}
	e.txnFree = append(e.txnFree, t)
	e.recheck = true
}

func (e *Engine) newRx(c *Conn) *rxTxn {
	rx := reuse(&e.rxFree)
	e.rxInUse++
	e.rxLevel.update(e.rxInUse)
	rx.conn = c
	return rx
}

// putRx releases a request context that is in no ring.
func (e *Engine) putRx(rx *rxTxn) {
	e.wheel.Stop(&rx.timer)
	rx.dropPayload(e)
	rx.conn.returnOne(credit.NetPktRx)
	e.rxInUse--
	e.rxLevel.update(e.rxInUse)
	rx.gen++
	rx.conn, rx.state, rx.ackReq, rx.push = nil, rxDone, false, false
	e.rxFree = append(e.rxFree, rx)
}

// reuse takes the context freed last, or makes one.
func reuse[T any](free *[]*T) *T {
	n := len(*free) - 1
	if n < 0 {
		return new(T)
	}
	v := (*free)[n]
	*free = (*free)[:n]
	return v
}

package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/internal/timer"
)

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

// SetWeight makes a function send so many times what one of weight 1 does, when both have as much
// to send as they may. It holds for connections to come too; 0 and 1 forget it.
func (e *Engine) SetWeight(function uint32, weight int) {
	if weight <= 1 {
		delete(e.weights, function)
	} else {
		e.weights[function] = weight
	}
	if s := e.shares[function]; s != nil {
		s.setWeight(weight)
	}
}

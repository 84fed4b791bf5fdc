package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// DefaultCellBytes is the default of Config.CellBytes: a packet of 4 KiB with its headers.
const DefaultCellBytes = 4608

// Config sizes an engine. A size that is zero gets the default named.
type Config struct {
	Profile    Profile
	Credits    *credit.Node // charged by connections without a node of their own; nil = no credit limit
	CreditCell int          // bytes of a buffer credit, default credit.DefaultCell
	MaxConns   int          // default 65536
	RxCells    int          // cells for the payload of pushes that wait for their turn, default 4096
	CellBytes  int          // bytes of a cell, default DefaultCellBytes; longer payload takes several cells
	TxContexts int          // transactions of all initiators, default 65536; pull responses have their own
	RxContexts int          // requests received and not answered, default 65536; above it, in the red zone, only a connection's head of line is accepted
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
	set(&c.CellBytes, DefaultCellBytes)
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
	stats   Stats

	events   ring.Queue[upcall] // bounded by the contexts they refer to
	lastCell *cell              // payload of the event that Next returned last

	contexts contexts
	schedule schedule
	waiting  waiting

	rate       rateUpdate
	ack        wire.Ack      // the packet being received, if it is an ACK
	push       wire.PushData // the packet being received, if it is a push
	ackAfter   uint16        // count of half packets at which a coalesced ACK is sent
	prefetched uint32        // keeps the compiler from removing Prefetch
}

// NewEngine returns an engine for one ULP. It panics if the profile is invalid; check a profile
// that comes from outside with Profile.Check first.
func NewEngine(cfg Config, ulp ULP) *Engine {
	cfg.setDefaults()
	if err := cfg.Profile.Check(); err != nil {
		panic(err)
	}
	e := &Engine{cfg: cfg, profile: cfg.Profile, ulp: ulp, ackAfter: uint16(wholePacket * cfg.Profile.AckCount)}
	e.contexts, e.schedule = newContexts(&e.cfg), newSchedule(&e.profile)
	e.rate = newRateUpdate(e)
	return e
}

// Conn returns the open connection with that local CID, nil if there is none.
func (e *Engine) Conn(cid CID) *Conn { return e.conns.find(cid) }

// Next takes one event from the queue. It returns false if there is none. ev.Data is valid until
// the next call.
func (e *Engine) Next(ev *Event) bool {
	if e.lastCell != nil {
		e.lastCell.conn.putCell(e.lastCell)
		e.lastCell = nil
	}
	for {
		if e.events.Len() == 0 && e.waiting.recheck {
			e.waiting.wake()
		}
		if e.events.Len() == 0 {
			*ev = Event{}
			return false
		}
		u := e.events.Pop()
		req, k, gen := u.req, u.cell, u.gen
		*ev = u.ev
		u.ev.Data, u.ev.Conn, u.cell, u.req = nil, nil, nil, nil // the queue must not keep them alive
		if req != nil {
			var ok bool
			if k, ok = req.take(gen, ev); !ok {
				continue
			}
		}
		e.lastCell = k
		return true
	}
}

// SetWeight lets a function send weight times as much as one of weight 1 when both always have
// something to send. The weight also holds for connections opened later. 0 and 1 remove it.
func (e *Engine) SetWeight(function uint32, weight int) { e.schedule.setWeight(function, weight) }

// HoldCredit keeps EvCredit back while on. What many packets free is then evaluated once, when it
// is switched off.
func (e *Engine) HoldCredit(on bool) { e.waiting.hold = on }

// CreditsChanged makes Next examine the connections that wait for credits again. Call it when
// credits became available outside this engine, for example because a limit was raised, or when a
// connection that got EvCredit does not issue.
func (e *Engine) CreditsChanged() { e.waiting.again() }

// Deadline returns the time at which Advance must be called next, math.MaxInt64 if no timer runs.
// It is never later than the next timer. If it is earlier, then by less than the time to that
// timer.
func (e *Engine) Deadline() Time { return e.wheel.Deadline() }

// Advance runs all timers that are due. Afterwards Transmit may have packets and Next events.
func (e *Engine) Advance(now Time) {
	for owner, _, ok := e.wheel.Expire(now); ok; owner, _, ok = e.wheel.Expire(now) {
		owner.expired(now)
	}
}

// FlushAcks queues every coalesced acknowledgement for the next Transmit. It is for an owner that
// is about to sleep.
func (e *Engine) FlushAcks(now Time) {
	for owner, ok := e.wheel.Flush(); ok; owner, ok = e.wheel.Flush() {
		owner.expired(now)
	}
}

// timerOwner is a part of a connection, or something else that has one timer. It is called when its
// timer is due. The timer is no longer armed then.
type timerOwner interface {
	expired(now Time)
}

// arm sets the timer of owner, whether or not it was armed.
func (e *Engine) arm(t *timer.Handle, owner timerOwner, at Time) { e.wheel.Arm(t, owner, 0, at) }

// Time is in nanoseconds of the owner's monotonic clock. The same clock drives the PSP
// initialisation vector.
type Time = vtime.Time

const (
	never   = vtime.Never // the deadline of a timer that is not armed
	longAgo = vtime.LongAgo
)

// FalconTime converts to Falcon units of 131.072 ns = 2^17 ps, 32 bits, wrapping (Falcon §10.1).
func FalconTime(ns Time) uint32 { return uint32((uint64(ns) * 1000) >> 17) }

// fromFU converts a duration in Falcon units to nanoseconds.
func fromFU(fu uint32) Time { return Time(uint64(fu) * 131072 / 1000) }

// connTable finds connections by local CID. It is a hash table that chains connections. The low
// bits of the CID are a sufficient hash, because the owner of the engine allocates the CIDs,
// usually from a table of its own.
type connTable struct {
	chains []*Conn // a power of two
	n      int
}

func (t *connTable) find(cid CID) *Conn {
	if len(t.chains) == 0 {
		return nil
	}
	c := t.chains[cid&CID(len(t.chains)-1)]
	for c != nil && c.cfg.LocalCID != cid {
		c = c.nextConn
	}
	return c
}

func (t *connTable) add(c *Conn) {
	if t.n == len(t.chains) {
		t.grow()
	}
	t.n++
	t.link(c)
}

func (t *connTable) link(c *Conn) {
	chain := &t.chains[c.cfg.LocalCID&CID(len(t.chains)-1)]
	c.nextConn, *chain = *chain, c
}

func (t *connTable) grow() {
	old := t.chains
	t.chains = make([]*Conn, max(2*len(old), 64))
	for _, c := range old {
		for c != nil {
			next := c.nextConn
			t.link(c)
			c = next
		}
	}
}

func (t *connTable) remove(c *Conn) {
	at := &t.chains[c.cfg.LocalCID&CID(len(t.chains)-1)]
	for *at != c {
		at = &(*at).nextConn
	}
	*at, c.nextConn = c.nextConn, nil
	t.n--
}

// Prefetch reads one word of each cache line of the connection that Push and Transmit need. The
// processor fetches these lines, and those of several connections, in parallel; without Prefetch
// each use would wait for its line, which is most of a packet's time when thousands of connections
// take turns. Call it for several connections before the first of them is used. (Prefetch
// instructions, which need assembly, measured no better.)
func (c *Conn) Prefetch() {
	c.e.prefetched += uint32(c.busy) + c.rx.data.base + c.rx.requests.base + c.flight.data.base + uint32(c.flight.probes) + c.tx.arSpacing + c.initiator.base
}

// Prefetch does what Conn.Prefetch does, for the Receive of a packet to that local CID. Call it for
// all packets of a batch before the first is received. It leaves out the lines that only an
// acknowledgement needs, because those were used shortly before, when the acknowledged packet was
// sent.
func (e *Engine) Prefetch(cid CID) {
	if c := e.conns.find(cid); c != nil {
		e.prefetched += uint32(c.busy) + c.rx.data.base + c.rx.requests.base + c.target.base + c.flight.data.base
	}
}

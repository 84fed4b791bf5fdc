package local

import (
	"fmt"
	"slices"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Kind is RDMA over Falcon's packets inside one NIC.
var Kind = transport.Kind{Name: rof.Loopback, New: func(h transport.Host, _ transport.Options) transport.Wire { return New(h) }}

// Engine carries the connections inside one NIC.
type Engine struct {
	host       transport.Host
	ends       map[falcon.CID]*Conn // open
	line       list.List[Conn]      // ends with something to deliver
	creditless []*Conn              // ends that wait for credit
	closed     []falcon.CID
	freed      bool // credits were returned, for which Falcon's connections may wait
	timers     timer.Wheel[*Conn]
	tap        Tap
	event      falcon.Event
	buf        []byte // one packet
}

var _ transport.Driven = (*Engine)(nil)

// Tap observes a packet: its sender, its transaction, and the maximum length of the response that
// it asks for.
type Tap func(now falcon.Time, from *Conn, kind falcon.TxnKind, rsn uint32, asked int, packet []byte)

// New makes an engine without connections.
func New(host transport.Host) *Engine {
	return &Engine{host: host, ends: map[falcon.CID]*Conn{}}
}

// SetTap makes f see every packet; nil removes the tap.
func (e *Engine) SetTap(f Tap) { e.tap = f }

// Open opens one end of a connection. cfg is as for falcon.Engine.Open; sequence numbers and
// give-up time have no meaning here. The ends find each other by their connection identifiers, in
// whichever order they are opened.
func (e *Engine) Open(cfg falcon.ConnConfig) (*Conn, error) {
	if e.ends[cfg.LocalCID] != nil {
		return nil, fmt.Errorf("connection %#x inside the NIC is already open", cfg.LocalCID)
	}
	c := &Conn{e: e, cfg: cfg}
	e.ends[cfg.LocalCID] = c
	e.buf = slices.Grow(e.buf[:0], cfg.MTU)
	e.buf = e.buf[:cap(e.buf)]
	// With equal identifiers an end is its own peer: verbs programs may connect a queue pair with
	// itself.
	if p := e.ends[cfg.RemoteCID]; p != nil && p.cfg.RemoteCID == cfg.LocalCID && !p.joined {
		c.peer, p.peer = p, c
		c.joined, p.joined = true, true
		p.schedule()
	}
	return c, nil
}

// NextClosed returns the connection identifier of an end that was closed and not returned yet.
func (e *Engine) NextClosed() (cid falcon.CID, ok bool) {
	n := len(e.closed)
	if n == 0 {
		return 0, false
	}
	cid = e.closed[n-1]
	e.closed = e.closed[:n-1]
	return cid, true
}

// quantum is how many transactions of all connections one Run delivers.
const quantum = 64

// Run implements transport.Driven: it delivers the issued transactions, one of each connection in
// turn.
func (e *Engine) Run(now falcon.Time) (more bool) {
	if !e.timers.Idle() {
		e.expire(now)
	}
	e.grantCredits(now)
	for range quantum {
		c := e.line.First()
		if c == nil {
			break
		}
		c.place.Remove()
		if c.txns.empty() {
			continue
		}
		c.deliver(now)
		c.schedule()
	}
	e.tellFreed()
	return e.Ready()
}

// tellFreed tells the host if credits were returned.
func (e *Engine) tellFreed() {
	if e.freed {
		e.freed = false
		e.host.CreditsChanged()
	}
}

func (e *Engine) expire(now falcon.Time) {
	for c, _, ok := e.timers.Expire(now); ok; c, _, ok = e.timers.Expire(now) {
		c.schedule()
	}
}

// Ready implements transport.Driven.
func (e *Engine) Ready() bool {
	if !e.line.Empty() {
		return true
	}
	for _, c := range e.creditless {
		if !c.closed && c.couldTake() {
			return true
		}
	}
	return false
}

// Deadline implements transport.Driven.
func (e *Engine) Deadline() falcon.Time { return e.timers.Deadline() }

// CreditsChanged implements transport.Wire. Nothing is to be done: Run checks the credits itself.
func (e *Engine) CreditsChanged() {}

// grantCredits sends EvCredit to the waiting ends that could now issue what they were refused. Such
// an end may have to wait again at once, behind the others.
func (e *Engine) grantCredits(now falcon.Time) {
	n, left := len(e.creditless), 0
	for i := range n {
		c := e.creditless[i]
		switch {
		case c.closed:
			c.waiting = false
		case c.couldTake():
			c.waiting = false
			c.user.Handle(now, c.e.begin(falcon.EvCredit))
		default:
			e.creditless[left] = c
			left++
		}
	}
	again := copy(e.creditless[left:], e.creditless[n:])
	clear(e.creditless[left+again:])
	e.creditless = e.creditless[:left+again]
}

// begin returns the scratch event, reset to the given kind. It is valid until the next call.
func (e *Engine) begin(kind falcon.EventKind) *falcon.Event {
	e.event = falcon.Event{Kind: kind}
	return &e.event
}

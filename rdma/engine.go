package rdma

import (
	"errors"

	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/fair"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/verbs"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// Config bounds the work of one call of Run. Zero fields take the defaults.
type Config struct {
	TurnOps   int         // work requests one QP starts per turn; default 8
	TurnBytes int         // data bytes one QP issues per turn; default 64 KiB
	Turns     int         // turns per Run; default 64
	Quantum   int         // data bytes that each function may issue in a round; default 16 KiB
	Linger    falcon.Time // how long a failed QP keeps its connection to tell the peer; default 500 ms
	PollTime  falcon.Time // how long an empty send queue is polled before it is armed; default 200 µs
}

// Engine carries out the verbs of all functions of one shard over one falcon.Engine. It is the
// Falcon engine's upper layer: falcon asks Fill for the bytes of each packet, the shard hands every
// falcon event to HandleEvent and calls Run for new work. One goroutine owns an Engine with
// everything made from it.
type Engine struct {
	cfg       Config
	falcon    *falcon.Engine
	active    fair.Round[Function] // with QPs in their ready lists, next visit first
	works     pool[work]
	segments  pool[segment]
	datagrams pool[datagram]
	polled    list.List[QP] // QPs whose send queue ran empty a short while ago
	linger    list.List[QP] // failed QPs whose connection is still open, oldest first
	stats     Stats         // of closed functions
	fns       []*Function
	shared    verbs.Shared
	headers   wire.Headers

	linksWanted []*Link
	grh         [grhSize]byte

	loopback    map[falcon.CID]*Loopback // open ends
	loops       list.List[Loopback]      // ends with something to deliver
	creditless  []*Loopback              // ends that wait for credit
	loopsClosed []falcon.CID
	loopTap     func(now falcon.Time, from *Loopback, kind falcon.TxnKind, rsn uint32, asked int, packet []byte)
	loopEvent   falcon.Event
	loopBuf     []byte // one packet
}

// NewEngine makes an engine without functions. SetFalcon must follow before QPs are connected.
func NewEngine(cfg Config) *Engine {
	if cfg.TurnOps <= 0 {
		cfg.TurnOps = 8
	}
	if cfg.TurnBytes <= 0 {
		cfg.TurnBytes = 64 << 10
	}
	if cfg.Turns <= 0 {
		cfg.Turns = 64
	}
	if cfg.Linger <= 0 {
		cfg.Linger = 500e6
	}
	if cfg.PollTime <= 0 {
		cfg.PollTime = 200e3
	}
	if cfg.Quantum <= 0 {
		cfg.Quantum = 16 << 10
	}
	return &Engine{cfg: cfg, active: fair.Round[Function]{Quantum: cfg.Quantum}}
}

// SetFalcon names the falcon.Engine whose upper layer e is.
func (e *Engine) SetFalcon(fe *falcon.Engine) { e.falcon = fe }

// Stats sums the counters of all functions, closed ones included.
func (e *Engine) Stats() Stats {
	s := e.stats
	for _, f := range e.fns {
		of := f.Stats()
		s.add(&of)
	}
	return s
}

// HandleEvent takes one event of the falcon engine. Events of connections that no QP owns (any
// more) end here.
func (e *Engine) HandleEvent(now falcon.Time, ev *falcon.Event) {
	if p, ok := ev.Conn.User().(endpoint); ok {
		p.handle(now, ev.Conn, ev)
	}
}

// handle takes one event of t, which once was made for q. Most mean nothing any more when q has let
// go of it.
func (q *QP) handle(now falcon.Time, t transport, ev *falcon.Event) {
	if q.conn != t {
		switch ev.Kind { // the connection is closing
		case falcon.EvPush:
			t.NackPush(now, ev.RSN, falconwire.NackNRE, 0, uint8(synNotServing))
		case falcon.EvPull:
			t.NackPush(now, ev.RSN, falconwire.NackCID, 0, 0)
		}
		return
	}
	switch ev.Kind {
	case falcon.EvPush:
		q.handlePush(now, ev)
	case falcon.EvPull:
		q.handlePull(now, ev)
	case falcon.EvPushDone:
		q.pushDone(now, ev)
	case falcon.EvPullDone:
		q.pullDone(now, ev)
	case falcon.EvResponseDone:
		if s := q.rsp.serving(ev.Tag); s != nil && q.fn.Trace != nil {
			q.noteResponse(trace.Acked, s)
		}
		q.responseDone(ev.Tag)
	case falcon.EvRNR:
		q.peerNotReady(now, ev.Tag)
	case falcon.EvCredit:
		q.waitCredit = false
		q.wake()
	case falcon.EvClosed:
		q.connClosed(now, ev)
	}
	q.fn.settle(now)
}

// errGone tells falcon that the data of a packet is no longer to be had.
var errGone = errors.New("rdma: the operation is over")

// Fill writes the RDMA headers and data of one packet of c into dst; see falcon.ULP. It reads guest
// memory but changes no queue and posts no completion.
func (e *Engine) Fill(c *falcon.Conn, kind falcon.TxnKind, tag uint64, dst []byte) (int, error) {
	if p, ok := c.User().(endpoint); ok {
		return p.fill(c, kind, tag, dst)
	}
	return 0, errGone
}

// fill is Fill for a packet of t.
func (q *QP) fill(t transport, kind falcon.TxnKind, tag uint64, dst []byte) (int, error) {
	if q.conn != t {
		return 0, errGone
	}
	if kind == falcon.TxnPullData {
		return q.fillResponse(tag, dst)
	}
	return q.fillRequest(tag, dst)
}

// Run gives functions with work their turns (sched.go), closes connections whose linger ended and
// delivers what loopback connections carry. It reports whether work is left that could go on now;
// work that waits for credit, a rate, a window, a fence or a peer does not count.
func (e *Engine) Run(now falcon.Time) (more bool) {
	for q := e.linger.First(); q != nil && q.lingerUntil <= now; q = e.linger.First() {
		q.closeConn(now)
	}
	e.shared.Timers.Run(now)
	for range e.cfg.Turns {
		if !e.visit(now) {
			break
		}
	}
	e.deliverLoopbacks(now)
	return e.Ready()
}

// Ready reports whether there is work for Run at once. Events and freed credits make some.
func (e *Engine) Ready() bool {
	if !e.active.Empty() || !e.loops.Empty() {
		return true
	}
	for _, l := range e.creditless {
		if !l.closed && l.couldTake() {
			return true
		}
	}
	return false
}

// Deadline is when Run has timed work next, math.MaxInt64 when never.
func (e *Engine) Deadline() falcon.Time {
	at := e.shared.Timers.Deadline()
	if q := e.linger.First(); q != nil {
		at = min(at, q.lingerUntil)
	}
	return at
}

// forget drops a closed function and keeps its counters.
func (e *Engine) forget(f *Function) {
	e.unschedule(f)
	for i, g := range e.fns {
		if g == f {
			e.fns = append(e.fns[:i], e.fns[i+1:]...)
			of := f.Stats()
			e.stats.add(&of)
			return
		}
	}
}

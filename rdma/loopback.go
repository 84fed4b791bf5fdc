package rdma

import (
	"fmt"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Loopback is one end of a connection inside an engine: between two functions, or two queue pairs
// of one. It is a transport like *falcon.Conn, without a network below: transactions wait in a
// queue, each is carried over in one go, its answer comes at once, and order is always kept.
//
//	Push, Pull ─▶ queue ─▶ deliver: fill ─▶ peer handles ─▶ answer ─▶ done
//	                ▲                                         │
//	                └── again after the RNR timeout ◀── not ready
//
// Credits are those of Falcon §8.2.3, taken when a transaction is issued and returned when it is
// done.
type Loopback struct {
	e      *Engine
	cfg    falcon.ConnConfig
	owner  endpoint
	peer   *Loopback // nil before the other end is opened and after it was closed
	joined bool      // there was a peer
	closed bool

	txns       []loopTxn // ring, grows up to maxLoopTxns
	head, tail uint32    // RSNs: of the oldest transaction, and of the next one
	answer     loopAnswer

	place   list.Node[Loopback] // in Engine.loops
	waiting bool                // in Engine.creditless
	want    credit.Cost         // refused
	retry   timer.Handle        // set while the transaction at head was not ready
}

// endpoint is what a transport delivers to and takes the bytes of packets from: a connected QP, or
// a datagram link.
type endpoint interface {
	handle(now falcon.Time, t transport, ev *falcon.Event)
	fill(t transport, kind falcon.TxnKind, tag uint64, dst []byte) (int, error)
}

// maxLoopTxns bounds what an end has in its queue, as Falcon's profile does (MaxTxn).
const maxLoopTxns = 1024

// loopTxn is a transaction that was issued and is not done.
type loopTxn struct {
	kind     falcon.TxnKind
	length   int // of the request
	response int // at most, of a pull
	tag      uint64
	cost     credit.Cost
	hopeless bool // a limit is below its cost: it fails in its turn
}

// loopAnswer is what the target said to the request that is being delivered.
type loopAnswer struct {
	kind   answerKind
	rsn    uint32
	code   falconwire.NackCode
	rnr    uint8
	ulp    uint8
	tag    uint64
	until  falcon.Time // delivered again then
	length int         // of the response
	most   int         // that it may have
}

type answerKind uint8

const (
	unanswered answerKind = iota
	answerAck
	answerNack
	answerDefer
	answerResponse
)

var _ transport = (*Loopback)(nil)

// OpenLoopback opens one end of a connection inside the engine. cfg is as for falcon.Engine.Open,
// and User must be a QP or a Link of the engine; sequence numbers, weight and give-up time mean
// nothing here. The ends find each other by their connection identifiers, in whichever order they
// are opened.
func (e *Engine) OpenLoopback(cfg falcon.ConnConfig) (*Loopback, error) {
	owner, ok := cfg.User.(endpoint)
	switch {
	case !ok:
		return nil, fmt.Errorf("rdma: loopback %#x: its user is a %T, not a queue pair", cfg.LocalCID, cfg.User)
	case e.loopback[cfg.LocalCID] != nil:
		return nil, fmt.Errorf("rdma: loopback %#x is open already", cfg.LocalCID)
	}
	l := &Loopback{e: e, cfg: cfg, owner: owner}
	if e.loopback == nil {
		e.loopback = map[falcon.CID]*Loopback{}
	}
	e.loopback[cfg.LocalCID] = l
	if len(e.loopBuf) < cfg.MTU {
		e.loopBuf = make([]byte, cfg.MTU)
	}
	// With equal identifiers an end is its own peer: verbs programs connect a queue pair with
	// itself.
	if p := e.loopback[cfg.RemoteCID]; p != nil && p.cfg.RemoteCID == cfg.LocalCID && !p.joined {
		l.peer, p.peer = p, l
		l.joined, p.joined = true, true
		p.schedule()
	}
	return l, nil
}

// Config returns what the end was opened with.
func (l *Loopback) Config() *falcon.ConnConfig { return &l.cfg }

// Closed reports whether the end was closed.
func (l *Loopback) Closed() bool { return l.closed }

// Push implements transport.
func (l *Loopback) Push(_ falcon.Time, tag uint64, length int) error {
	if length < 0 || length > l.cfg.MTU {
		return falcon.ErrTooLong
	}
	return l.issue(loopTxn{kind: falcon.TxnPush, tag: tag, length: length, cost: credit.PushCost(length, credit.DefaultCell)})
}

// PushLast implements transport.
func (l *Loopback) PushLast(now falcon.Time, tag uint64, length int) error {
	return l.Push(now, tag, length)
}

// Pull implements transport.
func (l *Loopback) Pull(_ falcon.Time, tag uint64, reqLen, respLen int) error {
	if reqLen < 0 || reqLen > l.cfg.MTU || respLen < 0 || respLen > l.cfg.MTU {
		return falcon.ErrTooLong
	}
	return l.issue(loopTxn{
		kind: falcon.TxnPull, tag: tag, length: reqLen, response: respLen, cost: credit.PullCost(respLen, credit.DefaultCell),
	})
}

// issue takes the credits of t and queues it.
func (l *Loopback) issue(t loopTxn) error {
	n := l.tail - l.head
	switch {
	case l.closed:
		return falcon.ErrClosed
	case n < maxLoopTxns && l.hopeless(&t.cost):
		t.cost, t.hopeless = credit.Cost{}, true
	}
	switch {
	case n == maxLoopTxns, l.cfg.Credits != nil && !l.cfg.Credits.Take(&t.cost):
		l.wait(&t.cost)
		return falcon.ErrXoff
	case int(n) == len(l.txns):
		l.grow()
	}
	*l.txn(l.tail) = t
	l.tail++
	l.schedule()
	return nil
}

// hopeless reports whether a limit is below cost, so that waiting would not help (Falcon §11,
// kUlpCmplCdtErr).
func (l *Loopback) hopeless(cost *credit.Cost) bool {
	return l.cfg.Credits != nil && !l.cfg.Credits.Possible(cost)
}

func (l *Loopback) txn(rsn uint32) *loopTxn { return &l.txns[rsn&uint32(len(l.txns)-1)] }

// grow doubles the ring.
func (l *Loopback) grow() {
	old := *l
	l.txns = make([]loopTxn, max(16, 2*len(old.txns)))
	for rsn := l.head; rsn != l.tail; rsn++ {
		*l.txn(rsn) = *old.txn(rsn)
	}
}

// schedule puts l in line for delivery, if it has something to deliver and need not wait.
func (l *Loopback) schedule() {
	if !l.joined || l.head == l.tail || l.retry.Armed() {
		return
	}
	l.e.loops.PushBack(&l.place, l)
}

// Due ends the delay after a receiver was not ready.
func (l *Loopback) Due(falcon.Time) { l.schedule() }

// loopQuantum is how many transactions one Run delivers, of all connections in turn.
const loopQuantum = 64

// deliverLoopbacks carries over what was issued, a transaction of each connection in its turn.
func (e *Engine) deliverLoopbacks(now falcon.Time) {
	e.grantCredits(now)
	for range loopQuantum {
		l := e.loops.First()
		if l == nil {
			return
		}
		l.place.Remove()
		if l.head == l.tail {
			continue
		}
		l.deliver(now)
		l.schedule()
	}
}

// deliver carries over the transaction at head.
func (l *Loopback) deliver(now falcon.Time) {
	t := *l.txn(l.head)
	ev := &l.e.loopEvent
	done := falcon.EvPushDone
	if t.kind == falcon.TxnPull {
		done = falcon.EvPullDone
	}
	p := l.peer
	if p == nil || l.closed {
		l.done(now, falcon.Event{Kind: done, Code: falcon.CmplDeadConn})
		return
	}
	if t.hopeless {
		l.done(now, falcon.Event{Kind: done, Code: falcon.CmplUlpCdtErr})
		return
	}
	n, err := l.owner.fill(l, t.kind, t.tag, l.e.loopBuf[:t.length])
	if err != nil {
		l.done(now, falcon.Event{Kind: done, Code: falcon.CmplLocalXlr})
		return
	}
	packet := l.e.loopBuf[:n]
	l.tap(now, t.kind, l.head, t.response, packet)
	p.answer = loopAnswer{rsn: l.head, most: t.response}
	*ev = falcon.Event{Kind: falcon.EvPush, RSN: l.head, Data: packet}
	if t.kind == falcon.TxnPull {
		ev.Kind, ev.Length = falcon.EvPull, t.response
	}
	p.owner.handle(now, p, ev)
	switch a := &p.answer; {
	case l.closed: // what it asked for ended its own function
	case p.closed:
		l.done(now, falcon.Event{Kind: done, Code: falcon.CmplDeadConn})
	case a.kind == answerAck:
		p.noteConcluded(l.head)
		l.done(now, falcon.Event{Kind: done, Code: falcon.CmplAck})
	case a.kind == answerResponse:
		l.respond(now, a)
	case a.kind == answerNack && a.code == falconwire.NackRNR:
		l.e.shared.Timers.Set(&l.retry, l, now+falconwire.RNRTimeout(a.rnr))
		*ev = falcon.Event{Kind: falcon.EvRNR, Tag: t.tag}
		l.owner.handle(now, l, ev)
	case a.kind == answerDefer:
		l.e.shared.Timers.Set(&l.retry, l, a.until)
	default:
		l.done(now, falcon.Event{Kind: done, Code: refusal(a), ULPCode: a.ulp})
	}
}

// refusal is how a refused transaction completes (Falcon §11).
func refusal(a *loopAnswer) falcon.Completion {
	if a.kind == answerNack {
		switch a.code {
		case falconwire.NackCIE:
			return falcon.CmplTargetNackCIE
		case falconwire.NackNRE:
			return falcon.CmplTargetNackNRE
		case falconwire.NackCID:
			return falcon.CmplTargetNackCID
		}
	}
	return falcon.CmplRemoteErr
}

// respond carries over the response to the pull at head.
func (l *Loopback) respond(now falcon.Time, a *loopAnswer) {
	p, tag := l.peer, a.tag
	done := falcon.Event{Kind: falcon.EvPullDone, Code: falcon.CmplRemoteErr}
	n, err := p.owner.fill(p, falcon.TxnPullData, tag, l.e.loopBuf[:a.length])
	if err == nil {
		done.Code, done.Data = falcon.CmplAck, l.e.loopBuf[:n]
		p.tap(now, falcon.TxnPullData, l.head, 0, done.Data)
	}
	l.done(now, done)
	if !p.closed {
		l.e.loopEvent = falcon.Event{Kind: falcon.EvResponseDone, Tag: tag, Code: done.Code}
		p.owner.handle(now, p, &l.e.loopEvent)
	}
}

// done ends the transaction at head with ev.
func (l *Loopback) done(now falcon.Time, ev falcon.Event) {
	t := l.txn(l.head)
	ev.RSN, ev.Tag = l.head, t.tag
	l.returnCredits(&t.cost)
	l.head++
	l.e.loopEvent = ev
	l.owner.handle(now, l, &l.e.loopEvent)
}

// AckPush implements transport.
func (l *Loopback) AckPush(_ falcon.Time, rsn uint32) {
	if l.answer.rsn == rsn {
		l.answer.kind = answerAck
	}
}

// NackPush implements transport.
func (l *Loopback) NackPush(_ falcon.Time, rsn uint32, code falconwire.NackCode, rnr, ulpCode uint8) {
	if a := &l.answer; a.rsn == rsn {
		a.kind, a.code, a.rnr, a.ulp = answerNack, code, rnr, ulpCode
	}
}

// RespondPull implements transport.
func (l *Loopback) RespondPull(_ falcon.Time, rsn uint32, tag uint64, length int) error {
	a := &l.answer
	switch {
	case l.closed || a.rsn != rsn:
		return falcon.ErrClosed
	case length < 0 || length > a.most:
		return falcon.ErrTooLong
	}
	a.kind, a.tag, a.length = answerResponse, tag, length
	return nil
}

// DeferPull implements transport.
func (l *Loopback) DeferPull(_ falcon.Time, rsn uint32, until falcon.Time) {
	if a := &l.answer; a.rsn == rsn {
		a.kind, a.until = answerDefer, until
	}
}

// Close implements transport. The peer finds out with its next transaction; until then it is the
// connection manager's to tell.
func (l *Loopback) Close(falcon.Time) {
	if l.closed {
		return
	}
	l.closed = true
	delete(l.e.loopback, l.cfg.LocalCID)
	l.e.shared.Timers.Stop(&l.retry)
	for rsn := l.head; rsn != l.tail; rsn++ { // they complete in their turn, but the credits' owner may be gone then
		t := l.txn(rsn)
		l.returnCredits(&t.cost)
		t.cost = credit.Cost{}
	}
	l.joined = true
	l.schedule()
	if p := l.peer; p != nil {
		l.peer, p.peer = nil, nil
		p.schedule()
	}
	l.e.loopsClosed = append(l.e.loopsClosed, l.cfg.LocalCID)
}

// NextClosed takes the connection identifier of a loopback connection whose end was closed since
// the last call.
func (e *Engine) NextClosed() (cid falcon.CID, ok bool) {
	n := len(e.loopsClosed)
	if n == 0 {
		return 0, false
	}
	cid = e.loopsClosed[n-1]
	e.loopsClosed = e.loopsClosed[:n-1]
	return cid, true
}

// SetTap makes f see every packet of loopback connections: who sent it, of which transaction it is,
// how much it asks for.
func (e *Engine) SetTap(f func(now falcon.Time, from *Loopback, kind falcon.TxnKind, rsn uint32, asked int, packet []byte)) {
	e.loopTap = f
}

func (l *Loopback) tap(now falcon.Time, kind falcon.TxnKind, rsn uint32, asked int, packet []byte) {
	if l.e.loopTap != nil {
		l.e.loopTap(now, l, kind, rsn, asked, packet)
	}
}

// returnCredits gives back what a transaction took. Connections of Falcon may wait for it too.
func (l *Loopback) returnCredits(c *credit.Cost) {
	if l.cfg.Credits == nil {
		return
	}
	_ = l.cfg.Credits.Return(c) // counted by the node; cannot fail for what issue took
	if l.e.falcon != nil {
		l.e.falcon.CreditsChanged()
	}
}

// wait puts l in the list of those that get EvCredit when there is room again.
func (l *Loopback) wait(c *credit.Cost) {
	l.want = *c
	if !l.waiting {
		l.waiting = true
		l.e.creditless = append(l.e.creditless, l)
	}
}

// grantCredits tells those who wait and could now issue what they were refused. Who is told may
// have to wait again at once, behind the others.
func (e *Engine) grantCredits(now falcon.Time) {
	n, left := len(e.creditless), 0
	for i := range n {
		l := e.creditless[i]
		switch {
		case l.closed:
			l.waiting = false
		case l.couldTake():
			l.waiting = false
			e.loopEvent = falcon.Event{Kind: falcon.EvCredit}
			l.owner.handle(now, l, &e.loopEvent)
		default:
			e.creditless[left] = l
			left++
		}
	}
	again := copy(e.creditless[left:], e.creditless[n:])
	clear(e.creditless[left+again:])
	e.creditless = e.creditless[:left+again]
}

func (l *Loopback) couldTake() bool {
	if l.tail-l.head == maxLoopTxns {
		return false
	}
	if l.cfg.Credits == nil || l.hopeless(&l.want) {
		return true
	}
	ok := l.cfg.Credits.Take(&l.want)
	if ok {
		_ = l.cfg.Credits.Return(&l.want)
	}
	return ok
}

// ConnectLoopback is Connect over an end of a loopback connection, opened with the QP as its user.
func (q *QP) ConnectLoopback(now falcon.Time, l *Loopback, peerQPN uint32, pathMTU int, peerGID [16]byte) abi.Status {
	return q.connect(l, &l.cfg, peerQPN, pathMTU, peerGID)
}

// Drain implements transport. Inside the NIC no acknowledgement can be lost.
func (l *Loopback) Drain(now falcon.Time) { l.Close(now) }

// Abort implements transport.
func (l *Loopback) Abort(now falcon.Time, _ falcon.CloseReason) { l.Close(now) }

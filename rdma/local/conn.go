package local

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/rdma/rof"
)

// Conn is one end of a connection inside the NIC.
type Conn struct {
	e      *Engine
	cfg    falcon.ConnConfig
	user   rof.User // nil until the end is assigned to a user
	peer   *Conn    // nil before the other end is opened and after it was closed
	joined bool     // it had a peer, or was closed
	closed bool

	txns   txns
	answer answer

	place   list.Node[Conn] // in Engine.line
	waiting bool            // in Engine.creditless
	want    credit.Cost     // cost that was refused
	parked  int             // transactions that released their credits because the peer is not ready
	retry   timer.Handle    // armed while the transaction at head was not ready or deferred
}

var _ rof.Pipe = (*Conn)(nil)

// Config returns the parameters that the end was opened with.
func (c *Conn) Config() *falcon.ConnConfig { return &c.cfg }

// SetUser implements rof.Pipe.
func (c *Conn) SetUser(u any) { c.user, _ = u.(rof.User) }

// User returns the user of the end.
func (c *Conn) User() any { return c.user }

// Closed reports whether the end was closed.
func (c *Conn) Closed() bool { return c.closed }

// Push implements rof.Pipe.
func (c *Conn) Push(_ falcon.Time, tag uint64, length int) error {
	if length < 0 || length > c.cfg.MTU {
		return falcon.ErrTooLong
	}
	return c.issue(&txn{kind: falcon.TxnPush, tag: tag, length: length, cost: credit.PushCost(length, credit.DefaultCell)})
}

// PushLast implements rof.Pipe.
func (c *Conn) PushLast(now falcon.Time, tag uint64, length int) error {
	return c.Push(now, tag, length)
}

// Pull implements rof.Pipe.
func (c *Conn) Pull(_ falcon.Time, tag uint64, reqLen, respLen int) error {
	if reqLen < 0 || reqLen > c.cfg.MTU || respLen < 0 || respLen > c.cfg.MTU {
		return falcon.ErrTooLong
	}
	return c.issue(&txn{
		kind: falcon.TxnPull, tag: tag, length: reqLen, response: respLen, cost: credit.PullCost(respLen, credit.DefaultCell),
	})
}

// issue takes the credits of t and queues it.
func (c *Conn) issue(t *txn) error {
	full := c.txns.full() || c.parked > 0
	switch {
	case c.closed:
		return falcon.ErrClosed
	case !full && c.hopeless(&t.cost):
		t.cost, t.hopeless = credit.Cost{}, true
	}
	if full || c.cfg.Credits != nil && !c.cfg.Credits.Take(&t.cost) {
		c.wait(&t.cost)
		return falcon.ErrXoff
	}
	c.txns.push(t)
	c.schedule()
	return nil
}

// hopeless reports whether cost is above a limit, so that waiting would not help (Falcon §11,
// kUlpCmplCdtErr).
func (c *Conn) hopeless(cost *credit.Cost) bool {
	return c.cfg.Credits != nil && !c.cfg.Credits.Possible(cost)
}

// schedule queues c for delivery, if it has something to deliver and need not wait.
func (c *Conn) schedule() {
	if !c.joined || c.txns.empty() || c.retry.Armed() {
		return
	}
	c.e.line.PushBack(&c.place, c)
}

// deliver delivers the transaction at head to the peer.
func (c *Conn) deliver(now falcon.Time) {
	t := c.txns.front() // valid until Handle is called: then the queue may grow
	kind, tag, asked, rsn := t.kind, t.tag, t.response, c.txns.head
	p := c.peer
	if p == nil || p.user == nil || c.closed {
		c.done(now, falcon.CmplDeadConn)
		return
	}
	if t.hopeless {
		c.done(now, falcon.CmplUlpCdtErr)
		return
	}
	n, err := c.user.Fill(kind, tag, c.e.buf[:t.length])
	if err != nil {
		c.done(now, falcon.CmplLocalXlr)
		return
	}
	packet := c.e.buf[:n]
	c.tap(now, kind, rsn, asked, packet)
	p.answer = answer{rsn: rsn, most: asked}
	ev := c.e.begin(falcon.EvPush)
	if kind == falcon.TxnPull {
		ev.Kind, ev.Length = falcon.EvPull, asked
	}
	ev.RSN, ev.Data = rsn, packet
	p.user.Handle(now, ev)
	switch a := &p.answer; {
	case c.closed: // handling the request closed this end's own function
	case p.closed:
		c.done(now, falcon.CmplDeadConn)
	case a.kind == answerAck:
		p.user.NoteConcluded(rsn)
		c.done(now, falcon.CmplAck)
	case a.kind == answerResponse:
		c.respond(now, a)
	case a.kind == answerNack && a.code == falconwire.NackRNR:
		c.e.timers.Arm(&c.retry, c, 0, now+falconwire.RNRTimeout(a.rnr))
		c.park()
		ev := c.e.begin(falcon.EvRNR)
		ev.Tag = tag
		c.user.Handle(now, ev)
	case a.kind == answerDefer:
		c.e.timers.Arm(&c.retry, c, 0, a.until)
	default:
		ev := c.conclude(a.refusal())
		ev.ULPCode = a.ulp
		c.user.Handle(now, ev)
	}
}

// respond delivers the response to the pull at head.
func (c *Conn) respond(now falcon.Time, a *answer) {
	p, tag := c.peer, a.tag
	code := falcon.CmplRemoteErr
	var data []byte
	n, err := p.user.Fill(falcon.TxnPullData, tag, c.e.buf[:a.length])
	if err == nil {
		code, data = falcon.CmplAck, c.e.buf[:n]
		p.tap(now, falcon.TxnPullData, c.txns.head, 0, data)
	}
	ev := c.conclude(code)
	ev.Data = data
	c.user.Handle(now, ev)
	if !p.closed {
		ev := c.e.begin(falcon.EvResponseDone)
		ev.Tag, ev.Code = tag, code
		p.user.Handle(now, ev)
	}
}

// done completes the transaction at head with the given code.
func (c *Conn) done(now falcon.Time, code falcon.Completion) { c.user.Handle(now, c.conclude(code)) }

// conclude removes the transaction at head from the queue and returns its completion event.
func (c *Conn) conclude(code falcon.Completion) *falcon.Event {
	t := c.txns.front()
	ev := c.e.begin(falcon.EvPushDone)
	if t.kind == falcon.TxnPull {
		ev.Kind = falcon.EvPullDone
	}
	ev.RSN, ev.Tag, ev.Code = c.txns.head, t.tag, code
	c.returnCredits(t)
	c.txns.head++
	return ev
}

// AckPush implements rof.Pipe.
func (c *Conn) AckPush(_ falcon.Time, rsn uint32) {
	if c.answer.rsn == rsn {
		c.answer.kind = answerAck
	}
}

// NackPush implements rof.Pipe.
func (c *Conn) NackPush(_ falcon.Time, rsn uint32, code falconwire.NackCode, rnr, ulpCode uint8) {
	if a := &c.answer; a.rsn == rsn {
		a.kind, a.code, a.rnr, a.ulp = answerNack, code, rnr, ulpCode
	}
}

// RespondPull implements rof.Pipe.
func (c *Conn) RespondPull(_ falcon.Time, rsn uint32, tag uint64, length int) error {
	a := &c.answer
	switch {
	case c.closed || a.rsn != rsn:
		return falcon.ErrClosed
	case length < 0 || length > a.most:
		return falcon.ErrTooLong
	}
	a.kind, a.tag, a.length = answerResponse, tag, length
	return nil
}

// DeferPull implements rof.Pipe.
func (c *Conn) DeferPull(_ falcon.Time, rsn uint32, until falcon.Time) {
	if a := &c.answer; a.rsn == rsn {
		a.kind, a.until = answerDefer, until
	}
}

// Close implements rof.Pipe. The peer finds out with its next transaction; telling it earlier is
// the connection manager's work.
func (c *Conn) Close(falcon.Time) {
	if c.closed {
		return
	}
	c.closed = true
	delete(c.e.ends, c.cfg.LocalCID)
	c.e.timers.Stop(&c.retry)
	for rsn := c.txns.head; rsn != c.txns.tail; rsn++ { // they complete later, when the owner of the credits may be gone
		t := c.txns.at(rsn)
		c.returnCredits(t)
		t.cost = credit.Cost{}
	}
	c.joined = true
	c.schedule()
	if p := c.peer; p != nil {
		c.peer, p.peer = nil, nil
		p.schedule()
	}
	c.e.closed = append(c.e.closed, c.cfg.LocalCID)
	c.e.tellFreed()
}

func (c *Conn) tap(now falcon.Time, kind falcon.TxnKind, rsn uint32, asked int, packet []byte) {
	if c.e.tap != nil {
		c.e.tap(now, c, kind, rsn, asked, packet)
	}
}

// returnCredits returns the credits of a transaction. Connections of Falcon may wait for them too;
// the host is told once per Run.
func (c *Conn) returnCredits(t *txn) {
	switch {
	case c.cfg.Credits == nil:
	case t.parked:
		t.parked = false
		c.parked--
		c.cfg.Credits.Forget(&t.cost)
	default:
		_ = c.cfg.Credits.Return(&t.cost) // the node counts errors; it cannot fail for what issue took
		c.e.freed = true
	}
}

// park releases the credits of all transactions that wait for the peer's receiver, as far as the
// node allows. They are not charged again: the delivery itself takes no time.
func (c *Conn) park() {
	for rsn := c.txns.head; rsn != c.txns.tail; rsn++ {
		if t := c.txns.at(rsn); !t.parked && t.cost != (credit.Cost{}) && c.cfg.Credits != nil && c.cfg.Credits.Park(&t.cost) {
			t.parked, c.e.freed = true, true
			c.parked++
		}
	}
}

// wait puts c in the list of those that get EvCredit when there is room again.
func (c *Conn) wait(cost *credit.Cost) {
	c.want = *cost
	if !c.waiting {
		c.waiting = true
		c.e.creditless = append(c.e.creditless, c)
	}
}

func (c *Conn) couldTake() bool {
	if c.txns.full() || c.parked > 0 {
		return false
	}
	if c.cfg.Credits == nil || c.hopeless(&c.want) {
		return true
	}
	ok := c.cfg.Credits.Retry(&c.want)
	if ok {
		_ = c.cfg.Credits.Return(&c.want)
	}
	return ok
}

// Drain implements rof.Pipe. It closes the end, because no acknowledgement can be lost inside
// the NIC.
func (c *Conn) Drain(now falcon.Time) { c.Close(now) }

// Abort implements rof.Pipe.
func (c *Conn) Abort(now falcon.Time, _ falcon.CloseReason) { c.Close(now) }

// maxTxns limits the queue of an end. Falcon's profile has a similar limit (MaxTxn).
const maxTxns = 1024

// txn is a transaction that was issued and is not done.
type txn struct {
	kind     falcon.TxnKind
	length   int // of the request
	response int // of a pull: maximum length of the response
	tag      uint64
	cost     credit.Cost
	parked   bool // has released cost
	hopeless bool // a limit is below its cost: it fails when its turn comes
}

// txns holds the transactions of an end, by RSN.
type txns struct {
	ring       []txn  // grows up to maxTxns
	head, tail uint32 // RSNs of the oldest transaction and of the next one
}

func (q *txns) empty() bool { return q.head == q.tail }

func (q *txns) full() bool { return q.tail-q.head == maxTxns }

func (q *txns) at(rsn uint32) *txn { return &q.ring[rsn&uint32(len(q.ring)-1)] }

// front returns the oldest transaction.
func (q *txns) front() *txn { return q.at(q.head) }

// push appends a transaction. There must be room for it.
func (q *txns) push(t *txn) {
	if int(q.tail-q.head) == len(q.ring) {
		q.grow()
	}
	*q.at(q.tail) = *t
	q.tail++
}

// grow doubles the ring.
func (q *txns) grow() {
	old := *q
	q.ring = make([]txn, max(16, 2*len(old.ring)))
	for rsn := q.head; rsn != q.tail; rsn++ {
		*q.at(rsn) = *old.at(rsn)
	}
}

// answer is the target's answer to the request that is being delivered.
type answer struct {
	kind   answerKind
	rsn    uint32
	code   falconwire.NackCode
	rnr    uint8
	ulp    uint8
	tag    uint64
	until  falcon.Time // when to deliver it again
	length int         // of the response
	most   int         // maximum of length
}

type answerKind uint8

const (
	unanswered answerKind = iota
	answerAck
	answerNack
	answerDefer
	answerResponse
)

// refusal returns the completion code of a refused transaction (Falcon §11).
func (a *answer) refusal() falcon.Completion {
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

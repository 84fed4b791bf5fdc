package falcon

import "github.com/falcon-vnic/vnic/falcon/credit"

// Between functions the scheduler is fair by bytes, whatever number of connections each has:
// deficit round robin over the functions, round robin over the connections of one.
//
//	class ─▶ express: f7
//	      ─▶ others:  f1 ─▶ f2 ─▶ f3     each turn adds a quantum of bytes, times its weight, to the function's deficit
//	                  └▶ c1 ─▶ c2
//
// A function that uses no more than what is guaranteed to it waits in the express list, which goes
// first: how much that can be is what its guarantee bounds, so that others lose nothing that is
// theirs.

// leastQuantum is a packet of 4 KiB with its headers: a function sends about one large packet in
// its turn, or several small; more where a connection's turn is longer (Profile.TurnBytes).
const leastQuantum = 4608

// share is a function's part in the scheduler.
type share struct {
	function uint32
	open     int // connections
	weight   int

	cells cellAges

	conns   [numClasses]connQueue
	deficit [numClasses]int
	on      [numClasses]*shareList
	prev    [numClasses]*share
	next    [numClasses]*share
}

// shareQueue is what waits in one class.
type shareQueue struct {
	express, others shareList
	class           txClass
	quantum         int
}

// shareList is a FIFO of functions linked through themselves.
type shareList struct{ head, tail *share }

func (l *shareList) push(s *share, class txClass) {
	s.on[class], s.prev[class], s.next[class] = l, l.tail, nil
	if l.tail != nil {
		l.tail.next[class] = s
	} else {
		l.head = s
	}
	l.tail = s
}

func (s *share) leave(class txClass) {
	l := s.on[class]
	if s.prev[class] != nil {
		s.prev[class].next[class] = s.next[class]
	} else {
		l.head = s.next[class]
	}
	if s.next[class] != nil {
		s.next[class].prev[class] = s.prev[class]
	} else {
		l.tail = s.prev[class]
	}
	s.on[class], s.prev[class], s.next[class] = nil, nil, nil
}

func (q *shareQueue) empty() bool { return q.express.head == nil && q.others.head == nil }

// push queues a connection within its function's share.
func (q *shareQueue) push(c *Conn) {
	c.share.conns[q.class].push(c)
	q.enter(c)
}

func (q *shareQueue) enter(c *Conn) {
	s := c.share
	if s.on[q.class] == nil {
		q.list(c).push(s, q.class)
	}
}

// list is where the function of a connection with something to send belongs.
func (q *shareQueue) list(c *Conn) *shareList {
	counter := credit.ReqPktTx
	if q.class == classTarget {
		counter = credit.DataPktTx
	}
	if c.credits != nil && c.credits.Covered(counter) {
		return &q.express
	}
	return &q.others
}

// pop takes the next connection out of the queue, which is not empty. settle must follow.
func (q *shareQueue) pop() *Conn {
	l := &q.express
	if l.head == nil {
		l = &q.others
	}
	s := l.head
	for s.deficit[q.class] <= 0 {
		if s.deficit[q.class] += s.weight * q.quantum; s.deficit[q.class] <= 0 { // it owes for more than a turn
			s.leave(q.class)
			l.push(s, q.class)
			s = l.head
		}
	}
	return s.conns[q.class].pop()
}

// endTurn ends the turn of a connection taken by pop.
func (q *shareQueue) endTurn(c *Conn) { c.share.conns[q.class].endTurn() }

// settle books n bytes that the connection taken by pop sent, and ends its function's turn when the
// deficit is used up or nothing is left.
func (q *shareQueue) settle(c *Conn, n int) {
	s := c.share
	s.deficit[q.class] -= n
	if s.conns[q.class].empty() { // what it did not use is not kept
		s.leave(q.class)
		s.deficit[q.class] = min(s.deficit[q.class], 0)
		return
	}
	if l := q.list(c); s.deficit[q.class] <= 0 || l != s.on[q.class] {
		s.leave(q.class)
		l.push(s, q.class)
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
		s.weight = max(weight, 1)
	}
}

// join gives a connection its function's share.
func (e *Engine) join(c *Conn) {
	s := e.shares[c.cfg.LocalFunction]
	if s == nil {
		s = &share{function: c.cfg.LocalFunction, weight: max(e.weights[c.cfg.LocalFunction], 1)}
		for i := range s.conns {
			s.conns[i].class = txClass(i)
		}
		e.shares[s.function] = s
	}
	s.open++
	c.share = s
}

// part ends that. Closed connections may stand in the share's queues a little longer.
func (e *Engine) part(c *Conn) {
	if c.share.open--; c.share.open == 0 {
		delete(e.shares, c.share.function)
	}
}

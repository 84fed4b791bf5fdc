package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/fair"
)

// Between functions the scheduler is fair by bytes (package fair), whatever number of connections
// each has; between the connections of one it is round robin.
//
//	class ─▶ express: f7
//	      ─▶ others:  f1 ─▶ f2 ─▶ f3
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

	cells cellAges

	conns [numClasses]connQueue
	flows [numClasses]fair.Flow[share]
}

// shareQueue is what waits in one class.
type shareQueue struct {
	round fair.Round[share]
	class txClass
}

func (q *shareQueue) empty() bool { return q.round.Empty() }

// push queues a connection within its function's share.
func (q *shareQueue) push(c *Conn) {
	s := c.share
	s.conns[q.class].push(c)
	if f := &s.flows[q.class]; !f.Waits() {
		q.round.Enter(f, s, q.covered(c))
	}
}

// covered reports whether the function of a connection with something to send uses no more than
// what is guaranteed to it.
func (q *shareQueue) covered(c *Conn) bool {
	counter := credit.ReqPktTx
	if q.class == classTarget {
		counter = credit.DataPktTx
	}
	return c.credits != nil && c.credits.Covered(counter)
}

// pop takes the next connection out of the queue, which is not empty. settle must follow.
func (q *shareQueue) pop() *Conn { return q.round.Next().conns[q.class].pop() }

// endTurn ends the turn of a connection taken by pop.
func (q *shareQueue) endTurn(c *Conn) { c.share.conns[q.class].endTurn() }

// settle books n bytes that the connection taken by pop sent, and ends its function's turn when the
// deficit is used up or nothing is left.
func (q *shareQueue) settle(c *Conn, n int) {
	s := c.share
	f := &s.flows[q.class]
	f.Charge(n)
	more := !s.conns[q.class].empty()
	q.round.Settle(f, more, more && q.covered(c))
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

func (s *share) setWeight(weight int) {
	for i := range s.flows {
		s.flows[i].Weight = weight
	}
}

// join gives a connection its function's share.
func (e *Engine) join(c *Conn) {
	s := e.shares[c.cfg.LocalFunction]
	if s == nil {
		s = &share{function: c.cfg.LocalFunction}
		s.setWeight(e.weights[s.function])
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

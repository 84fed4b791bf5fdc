package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/fair"
	"github.com/falcon-vnic/vnic/internal/ring"
)

// connQueue is a FIFO of connections that may have packets of one class to send. A connection is in
// it at most once.
type connQueue struct {
	conns ring.Queue[*Conn]
	class txClass

	bytes int // sent in the turn of the connection in front
}

func (q *connQueue) empty() bool { return q.conns.Len() == 0 }

func (q *connQueue) push(c *Conn) {
	if q.enter(c) {
		*q.conns.Push() = c
	}
}

// pushFront puts a connection whose turn is not over back in front. It returns false if the
// connection is already in the queue.
func (q *connQueue) pushFront(c *Conn) bool {
	if !q.enter(c) {
		return false
	}
	*q.conns.PushFront() = c
	return true
}

// enter marks c as in the queue. It returns false if c was already.
func (q *connQueue) enter(c *Conn) bool {
	if c.queued>>q.class&1 != 0 {
		return false
	}
	c.queued |= 1 << q.class
	return true
}

// pop removes and returns the first connection of the queue, which is not empty.
func (q *connQueue) pop() *Conn {
	place := q.conns.Pop()
	c := *place
	*place = nil
	c.queued &^= 1 << q.class
	return c
}

func (q *connQueue) endTurn() { q.bytes = 0 }

// txClass is a class of packets that a connection waits to send. The initiator's requests and the
// target's responses are separate classes, so that neither can block the other (Falcon §8.3, CR
// rule 2).
type txClass uint8

const (
	classAck txClass = iota // ACK and NACK
	classRetransmit
	classInitiator // new push data and pull requests
	classTarget    // new pull data
	numClasses
)

// wanted holds the bits of Conn.busy that each class consists of.
var wanted = [numClasses]uint8{
	classAck: wantAck | wantNack, classRetransmit: wantPushResend | wantPullResend | wantPullDataResend, classInitiator: wantPush | wantPull, classTarget: wantPullData,
}

// wants reports whether the connection has packets of the class, whether or not they may be sent
// now.
func (c *Conn) wants(class txClass) bool { return c.busy&wanted[class] != 0 }

// leastQuantum is a packet of 4 KiB with its headers. In its turn a function sends about one large
// packet or several small ones, and more where a connection's turn is longer (Profile.TurnBytes).
const leastQuantum = 4608

// share holds a function's queues in the scheduler.
type share struct {
	function uint32
	open     int // connections

	cells cellAges

	conns [numClasses]connQueue
	flows [numClasses]fair.Flow[share]
}

func (s *share) setWeight(weight int) {
	for i := range s.flows {
		s.flows[i].Weight = weight
	}
}

// shareQueue holds the functions that wait in one class.
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

// covered reports whether the function of a connection uses no more than its guaranteed credits.
func (q *shareQueue) covered(c *Conn) bool {
	counter := credit.ReqPktTx
	if q.class == classTarget {
		counter = credit.DataPktTx
	}
	return c.credits.node != nil && c.credits.node.Covered(counter)
}

// pop removes and returns the next connection of the queue, which is not empty. The caller must
// call settle afterwards.
func (q *shareQueue) pop() *Conn { return q.round.Next().conns[q.class].pop() }

// endTurn ends the turn of a connection that pop returned.
func (q *shareQueue) endTurn(c *Conn) { c.share.conns[q.class].endTurn() }

// settle charges n bytes that the connection returned by pop has sent, and ends its function's turn
// when the deficit is used up or the queue is empty.
func (q *shareQueue) settle(c *Conn, n int) {
	s := c.share
	f := &s.flows[q.class]
	f.Charge(n)
	more := !s.conns[q.class].empty()
	q.round.Settle(f, more, more && q.covered(c))
}

// schedule decides what is transmitted next. Between acknowledgements, retransmissions and new
// packets it is fair by weight; between initiator and target packets it is round robin, between
// functions weighted deficit round robin by bytes (package fair), between the connections of one
// round robin (Falcon §8.3).
//
//	class ─▶ express: f7
//	      ─▶ others:  f1 ─▶ f2 ─▶ f3
//	                  └▶ c1 ─▶ c2
//
// A function that uses no more than its guarantee waits in the express list, which is served first.
// The guarantee limits how much that can be, so others lose nothing of their own.
type schedule struct {
	queues  [numClasses]shareQueue
	urgent  bool              // the packet sent last came from an express list
	shares  map[uint32]*share // of functions with open connections
	weights map[uint32]int    // of functions whose weight is not 1

	round       [3]int // packets in a round: ack, retransmit, new
	left        [3]int // of the current round
	targetFirst bool
}

func newSchedule(p *Profile) schedule {
	s := schedule{shares: map[uint32]*share{}, weights: map[uint32]int{}, round: [3]int{p.WeightAck, p.WeightRetransmit, p.WeightNew}}
	for i := range s.queues {
		s.queues[i].class = txClass(i)
		s.queues[i].round.Quantum = max(leastQuantum, p.TurnBytes)
	}
	return s
}

// pick returns the class to serve next, whose queue is not empty. It returns false if all are
// empty.
func (s *schedule) pick() (txClass, bool) {
	for range 2 {
		if s.left[0] > 0 && !s.queues[classAck].empty() {
			return classAck, true
		}
		if s.left[1] > 0 && !s.queues[classRetransmit].empty() {
			return classRetransmit, true
		}
		if s.left[2] > 0 {
			first, second := classInitiator, classTarget
			if s.targetFirst {
				first, second = second, first
			}
			if !s.queues[first].empty() {
				return first, true
			}
			if !s.queues[second].empty() {
				return second, true
			}
		}
		s.left = s.round
	}
	return 0, false
}

// charge counts one packet of the class as sent.
func (s *schedule) charge(class txClass) {
	switch class {
	case classAck, classRetransmit:
		s.left[class]--
	default:
		s.left[2]--
		s.targetFirst = class == classInitiator
	}
}

// setWeight sets the weight of a function; see Engine.SetWeight.
func (s *schedule) setWeight(function uint32, weight int) {
	if weight <= 1 {
		delete(s.weights, function)
	} else {
		s.weights[function] = weight
	}
	if sh := s.shares[function]; sh != nil {
		sh.setWeight(weight)
	}
}

// add assigns a connection to its function's share.
func (s *schedule) add(c *Conn) {
	sh := s.shares[c.cfg.LocalFunction]
	if sh == nil {
		sh = &share{function: c.cfg.LocalFunction}
		sh.setWeight(s.weights[sh.function])
		for i := range sh.conns {
			sh.conns[i].class = txClass(i)
		}
		s.shares[sh.function] = sh
	}
	sh.open++
	c.share = sh
}

// remove undoes add. A closed connection may stay in the share's queues a little longer.
func (s *schedule) remove(c *Conn) {
	if c.share.open--; c.share.open == 0 {
		delete(s.shares, c.share.function)
	}
}

// enqueue queues the connection for everything that it has to send. It is called whenever a packet
// may have become eligible.
func (c *Conn) enqueue() {
	if c.busy == 0 {
		return
	}
	for class := range numClasses {
		if c.wants(class) {
			c.queue(class)
		}
	}
}

// queue queues the connection for its packets of one class.
func (c *Conn) queue(class txClass) { c.e.schedule.queues[class].push(c) }

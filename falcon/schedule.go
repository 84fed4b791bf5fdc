package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/fair"
)

// txClass is what a connection waits to send. Requests of the initiator and responses of the target
// are apart so that neither can block the other (Falcon §8.3, CR rule 2).
type txClass uint8

const (
	classAck txClass = iota // ACK and NACK
	classRetransmit
	classInitiator // new push data and pull requests
	classTarget    // new pull data
	numClasses
)

// wanted are the bits of each class.
var wanted = [numClasses]uint8{
	classAck: wantAck | wantNack, classRetransmit: wantRetransmit, classInitiator: wantPush | wantPull, classTarget: wantPullData,
}

// wants reports whether the connection has something of the class, eligible or not.
func (c *Conn) wants(class txClass) bool { return c.busy&wanted[class] != 0 }

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

func (s *share) setWeight(weight int) {
	for i := range s.flows {
		s.flows[i].Weight = weight
	}
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

// arbiter shares transmission between acknowledgements, retransmissions and new packets by weight;
// between initiator and target packets it is round robin, between functions weighted deficit round
// robin (fair.go), between the connections of one round robin (Falcon §8.3).
type arbiter struct {
	left        [3]int // of the current round: ack, retransmit, new
	targetFirst bool
}

// pick returns the class to serve next. Its queue is not empty.
func (e *Engine) pick() (txClass, bool) {
	a := &e.arbiter
	for range 2 {
		if a.left[0] > 0 && !e.queues[classAck].empty() {
			return classAck, true
		}
		if a.left[1] > 0 && !e.queues[classRetransmit].empty() {
			return classRetransmit, true
		}
		if a.left[2] > 0 {
			first, second := classInitiator, classTarget
			if a.targetFirst {
				first, second = second, first
			}
			if !e.queues[first].empty() {
				return first, true
			}
			if !e.queues[second].empty() {
				return second, true
			}
		}
		a.left = [3]int{e.profile.WeightAck, e.profile.WeightRetransmit, e.profile.WeightNew}
	}
	return 0, false
}

// charge books one packet of the class.
func (a *arbiter) charge(class txClass) {
	switch class {
	case classAck, classRetransmit:
		a.left[class]--
	default:
		a.left[2]--
		a.targetFirst = class == classInitiator
	}
}

// kick queues the connection for everything it has to send: called whenever a packet may have
// become eligible.
func (c *Conn) kick() {
	if c.closed || c.busy == 0 {
		return
	}
	for class := range numClasses {
		if c.wants(class) {
			c.e.queues[class].push(c)
		}
	}
}

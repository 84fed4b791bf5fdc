package falcon

import "github.com/falcon-vnic/vnic/internal/ring"

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

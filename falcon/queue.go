package falcon

// eventQueue is a growing circular queue of upcalls. Its length is bounded by the contexts the
// events stand for.
type eventQueue struct {
	buf  []upcall
	head int
	n    int
}

// upcall is an event and what must be checked or released when it is taken.
type upcall struct {
	ev   Event
	cell *cell
	rx   *rxTxn // EvPush, EvPull: deliver only if still queued
	gen  uint32
}

func (q *eventQueue) push() *upcall {
	if q.n == len(q.buf) {
		buf := make([]upcall, max(2*len(q.buf), 64))
		for i := range q.n {
			buf[i] = q.buf[(q.head+i)&(len(q.buf)-1)]
		}
		q.buf, q.head = buf, 0
	}
	u := &q.buf[(q.head+q.n)&(len(q.buf)-1)]
	q.n++
	return u
}

func (q *eventQueue) pop() *upcall {
	u := &q.buf[q.head]
	q.head = (q.head + 1) & (len(q.buf) - 1)
	q.n--
	return u
}

// connQueue is a growing circular FIFO of connections that may have something of one class to send.
// A connection is in it at most once.
type connQueue struct {
	buf   []*Conn
	head  int
	n     int
	class txClass

	bytes int // sent in the turn of the connection in front
}

func (q *connQueue) empty() bool { return q.n == 0 }

func (q *connQueue) push(c *Conn) {
	if q.enter(c) {
		q.buf[(q.head+q.n)&(len(q.buf)-1)] = c
		q.n++
	}
}

// pushFront puts a connection back whose turn is not over; false if it is in the queue again
// already.
func (q *connQueue) pushFront(c *Conn) bool {
	if !q.enter(c) {
		return false
	}
	q.head = (q.head - 1) & (len(q.buf) - 1)
	q.buf[q.head] = c
	q.n++
	return true
}

// enter makes room for c; false if it is in the queue.
func (q *connQueue) enter(c *Conn) bool {
	if c.queued>>q.class&1 != 0 {
		return false
	}
	c.queued |= 1 << q.class
	if q.n == len(q.buf) {
		buf := make([]*Conn, max(2*len(q.buf), 8))
		for i := range q.n {
			buf[i] = q.buf[(q.head+i)&(len(q.buf)-1)]
		}
		q.buf, q.head = buf, 0
	}
	return true
}

// pop takes the first connection out of the queue, which is not empty.
func (q *connQueue) pop() *Conn {
	c := q.buf[q.head]
	q.buf[q.head] = nil
	q.head = (q.head + 1) & (len(q.buf) - 1)
	q.n--
	c.queued &^= 1 << q.class
	return c
}

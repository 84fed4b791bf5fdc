package falcon

// eventQueue is a growing circular queue of upcalls. Its length is bounded by the contexts the events stand for.
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

// connQueue is a FIFO of connections that may have something of one class to send. A connection is in it at most once;
// links live in the connection.
type connQueue struct {
	head, tail *Conn
	class      txClass
}

func (q *connQueue) push(c *Conn) {
	if c.queued[q.class] {
		return
	}
	c.queued[q.class] = true
	if q.tail != nil {
		q.tail.nextIn[q.class] = c
	} else {
		q.head = c
	}
	q.tail = c
}

// pushFront puts a connection back whose turn is not over.
func (q *connQueue) pushFront(c *Conn) {
	if c.queued[q.class] {
		return
	}
	c.queued[q.class] = true
	c.nextIn[q.class] = q.head
	q.head = c
	if q.tail == nil {
		q.tail = c
	}
}

func (q *connQueue) pop() *Conn {
	c := q.head
	if c == nil {
		return nil
	}
	q.head = c.nextIn[q.class]
	if q.head == nil {
		q.tail = nil
	}
	c.nextIn[q.class] = nil
	c.queued[q.class] = false
	return c
}

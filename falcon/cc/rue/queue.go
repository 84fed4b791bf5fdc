package rue

// MaxQueue is the most entries a queue may have.
const MaxQueue = 65536

// Queue is a bounded FIFO of entries, as one of the two of Falcon §10.6.2. Memory grows with what
// is really queued. The zero value has no room; make it with NewQueue.
type Queue struct {
	limit      int
	buf        [][EntryLen]byte // length a power of two
	head, tail uint64           // entries taken and put so far
}

// NewQueue returns a queue of limit entries.
func NewQueue(limit int) Queue { return Queue{limit: limit} }

// Len is the number of entries in the queue.
func (q *Queue) Len() int { return int(q.tail - q.head) }

// Gen is the generation bit of the next entry: it alternates with every lap, so that a poller sees
// what is new.
func (q *Queue) Gen() bool { return q.tail/uint64(q.limit)&1 == 0 }

// Put reserves the next entry and returns its memory to be appended to, nil if the queue is full.
func (q *Queue) Put() []byte {
	if q.Len() >= q.limit {
		return nil
	}
	if q.Len() == len(q.buf) {
		q.grow()
	}
	e := &q.buf[q.tail&uint64(len(q.buf)-1)]
	q.tail++
	return e[:0]
}

// Take returns the oldest entry, nil if there is none. It is valid until the next Put.
func (q *Queue) Take() []byte {
	if q.head == q.tail {
		return nil
	}
	e := &q.buf[q.head&uint64(len(q.buf)-1)]
	q.head++
	return e[:]
}

func (q *Queue) grow() {
	buf := make([][EntryLen]byte, max(2*len(q.buf), 16))
	for n := q.head; n != q.tail; n++ {
		buf[n&uint64(len(buf)-1)] = q.buf[n&uint64(len(q.buf)-1)]
	}
	q.buf = buf
}

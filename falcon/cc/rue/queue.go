package rue

import "github.com/falcon-vnic/vnic/internal/ring"

// MaxQueue is the most entries a queue may have.
const MaxQueue = 65536

// Queue is a bounded FIFO of entries, as one of the two of Falcon §10.6.2. Memory grows with what
// is really queued. The zero value has no room; make it with NewQueue.
type Queue struct {
	limit   int
	entries ring.Queue[[EntryLen]byte]
	put     uint64 // entries so far
}

// NewQueue returns a queue of limit entries.
func NewQueue(limit int) Queue { return Queue{limit: limit} }

// Len is the number of entries in the queue.
func (q *Queue) Len() int { return q.entries.Len() }

// Gen is the generation bit of the next entry: it alternates with every lap, so that a poller sees
// what is new.
func (q *Queue) Gen() bool { return q.put/uint64(q.limit)&1 == 0 }

// Put reserves the next entry and returns its memory to be appended to, nil if the queue is full.
func (q *Queue) Put() []byte {
	if q.Len() >= q.limit {
		return nil
	}
	q.put++
	return q.entries.Push()[:0]
}

// Take returns the oldest entry, nil if there is none. It is valid until the next Put.
func (q *Queue) Take() []byte {
	if q.entries.Len() == 0 {
		return nil
	}
	return q.entries.Pop()[:]
}

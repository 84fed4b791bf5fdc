package rue

import "github.com/falcon-vnic/vnic/internal/ring"

// MaxQueue is the maximum of entries in a queue.
const MaxQueue = 65536

// Queue is a bounded FIFO of entries, like each of the two of Falcon §10.6.2. Memory grows with the
// number of entries actually queued. The zero value has no room; make a queue with NewQueue.
type Queue struct {
	limit   int
	entries ring.Queue[[EntryLen]byte]
	put     uint64 // number of entries put so far
}

// NewQueue returns a queue of limit entries.
func NewQueue(limit int) Queue { return Queue{limit: limit} }

// Len returns the number of entries in the queue.
func (q *Queue) Len() int { return q.entries.Len() }

// Gen returns the generation bit of the next entry. It alternates with every lap, so that a poller
// can recognise new entries.
func (q *Queue) Gen() bool { return q.put/uint64(q.limit)&1 == 0 }

// Put reserves the next entry and returns its memory to append to, nil if the queue is full.
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

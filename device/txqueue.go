package device

// txQueue holds finished frames, in order, until the uplink has taken them.
// Its buffers are allocated once. A short write leaves the rest at the head; a
// full queue stops the shard from making more packets.
type txQueue struct {
	bufs   [][]byte // whole buffers
	frames [][]byte // the same, cut to the frame's length
	head   int      // first frame not yet taken
	tail   int      // first free slot
}

func newTxQueue(slots, size int) *txQueue {
	q := &txQueue{bufs: make([][]byte, slots), frames: make([][]byte, slots)}
	store := make([]byte, slots*size)
	for i := range q.bufs {
		q.bufs[i] = store[i*size : (i+1)*size : (i+1)*size]
	}
	return q
}

// slot returns the buffer for the next frame, nil when the queue is full.
func (q *txQueue) slot() []byte {
	if q.tail == len(q.bufs) {
		return nil
	}
	return q.bufs[q.tail]
}

// commit appends the first n bytes of slot as a frame.
func (q *txQueue) commit(n int) { q.commitAt(0, n) }

// commitAt appends n bytes of slot, from at on, as a frame.
func (q *txQueue) commitAt(at, n int) {
	q.frames[q.tail] = q.bufs[q.tail][at : at+n]
	q.tail++
}

// pending returns the frames to write.
func (q *txQueue) pending() [][]byte { return q.frames[q.head:q.tail] }

// taken removes the first n pending frames. Slots are reused once all are
// gone, or by moving the rest down when the queue's end is reached.
func (q *txQueue) taken(n int) {
	q.head += n
	switch {
	case q.head == q.tail:
		q.head, q.tail = 0, 0
	case q.tail == len(q.bufs) && q.head > 0:
		for i := q.head; i < q.tail; i++ {
			j := i - q.head
			q.bufs[j], q.bufs[i] = q.bufs[i], q.bufs[j]
			q.frames[j] = q.frames[i]
		}
		q.head, q.tail = 0, q.tail-q.head
	}
}

package device

// txQueue holds finished frames, in order, until the uplink has taken them.
// Its buffers are allocated once. A short write leaves the rest at the head; a
// full queue stops the shard from making more packets.
type txQueue struct {
	bufs   [][]byte // whole buffers
	frames [][]byte // the same, cut to the frame's length
	count  int

	patient bool // the last frame may wait for company
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
	if q.count == len(q.bufs) {
		return nil
	}
	return q.bufs[q.count]
}

// commit appends the first n bytes of slot as a frame.
func (q *txQueue) commit(n int) { q.commitAt(0, n) }

// commitAt appends n bytes of slot, from at on, as a frame.
func (q *txQueue) commitAt(at, n int) {
	q.frames[q.count] = q.bufs[q.count][at : at+n]
	q.count++
	q.patient = false
}

// pending returns the frames to write.
func (q *txQueue) pending() [][]byte { return q.frames[:q.count] }

// taken removes the first n pending frames and moves the rest down.
func (q *txQueue) taken(n int) {
	if n == 0 {
		return
	}
	q.count -= n
	for i := range q.count {
		q.bufs[i], q.bufs[i+n] = q.bufs[i+n], q.bufs[i]
		q.frames[i] = q.frames[i+n]
	}
}

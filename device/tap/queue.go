package tap

// Queue holds finished frames, in order, until the uplink has taken them. Its buffers are allocated
// once. After a short write the remaining frames stay at the head. While the queue is full, Slot
// returns nil.
type Queue struct {
	bufs   [][]byte // whole buffers
	frames [][]byte // the same buffers, cut to the frames' lengths
	count  int

	MayWait bool // the last frame may wait for others to form a superframe
}

// NewQueue returns a queue of slots frames of at most size bytes.
func NewQueue(slots, size int) *Queue {
	q := &Queue{bufs: make([][]byte, slots), frames: make([][]byte, slots)}
	store := make([]byte, slots*size)
	for i := range q.bufs {
		q.bufs[i] = store[i*size : (i+1)*size : (i+1)*size]
	}
	return q
}

// Slot returns the buffer for the next frame, or nil when the queue is full.
func (q *Queue) Slot() []byte {
	if q.count == len(q.bufs) {
		return nil
	}
	return q.bufs[q.count]
}

// Commit appends the first n bytes of Slot as a frame.
func (q *Queue) Commit(n int) { q.CommitAt(0, n) }

// CommitAt appends n bytes of Slot, starting at offset at, as a frame.
func (q *Queue) CommitAt(at, n int) {
	q.frames[q.count] = q.bufs[q.count][at : at+n]
	q.count++
	q.MayWait = false
}

// Pending returns the frames to write.
func (q *Queue) Pending() [][]byte { return q.frames[:q.count] }

// Taken removes the first n pending frames and moves the others to the front.
func (q *Queue) Taken(n int) {
	if n == 0 {
		return
	}
	q.count -= n
	for i := range q.count {
		q.bufs[i], q.bufs[i+n] = q.bufs[i+n], q.bufs[i]
		q.frames[i] = q.frames[i+n]
	}
}

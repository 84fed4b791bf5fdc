package ring

// least is the initial capacity of a ring.
const least = 8

// Queue is a growing FIFO. Its zero value is empty.
//
// Elements are accessed by pointers into the ring, so that large ones are not copied. A pointer is
// valid until the next Push or PushFront. A popped element stays in its slot until the slot is
// reused, so clear references that it must not keep alive.
type Queue[T any] struct {
	buf     []T // its length is a power of two
	head, n int
}

// Len returns the number of elements.
func (q *Queue[T]) Len() int { return q.n }

// At returns the element at index i, counted from the front.
func (q *Queue[T]) At(i int) *T { return &q.buf[(q.head+i)&(len(q.buf)-1)] }

// Push appends a slot and returns it. The slot contains what an earlier element left there.
func (q *Queue[T]) Push() *T {
	if q.n == len(q.buf) {
		q.grow()
	}
	q.n++
	return &q.buf[(q.head+q.n-1)&(len(q.buf)-1)]
}

// PushFront adds a slot in front of all others and returns it.
func (q *Queue[T]) PushFront() *T {
	if q.n == len(q.buf) {
		q.grow()
	}
	q.head = (q.head - 1) & (len(q.buf) - 1)
	q.n++
	return q.At(0)
}

// Pop removes and returns the first element of the queue, which must not be empty.
func (q *Queue[T]) Pop() *T {
	v := q.At(0)
	q.head = (q.head + 1) & (len(q.buf) - 1)
	q.n--
	return v
}

func (q *Queue[T]) grow() {
	buf := make([]T, max(2*len(q.buf), least))
	for i := range q.n {
		buf[i] = *q.At(i)
	}
	q.buf, q.head = buf, 0
}

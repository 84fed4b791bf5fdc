package ring

// least is the first capacity of a ring.
const least = 8

// Queue is a growing FIFO. Its zero value is empty.
//
// Elements are reached by pointers into the ring, so that large ones are not copied; a pointer is
// valid until the next Push or PushFront. A popped element stays in its place until that is used
// again: clear what it must not keep alive.
type Queue[T any] struct {
	buf     []T // its length is a power of two
	head, n int
}

// Len is how many elements the queue has.
func (q *Queue[T]) Len() int { return q.n }

// At returns the element behind i others.
func (q *Queue[T]) At(i int) *T { return &q.buf[(q.head+i)&(len(q.buf)-1)] }

// Push makes a place at the end. It holds what an earlier element left there.
func (q *Queue[T]) Push() *T {
	if q.n == len(q.buf) {
		q.grow()
	}
	q.n++
	return &q.buf[(q.head+q.n-1)&(len(q.buf)-1)]
}

// PushFront makes a place in front of all others.
func (q *Queue[T]) PushFront() *T {
	if q.n == len(q.buf) {
		q.grow()
	}
	q.head = (q.head - 1) & (len(q.buf) - 1)
	q.n++
	return q.At(0)
}

// Pop takes the first element out of the queue, which is not empty.
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

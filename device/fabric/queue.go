package fabric

import (
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/internal/ring"
)

const queueLen = 1024 // maximum number of frames that wait at a port

// queue holds the frames that wait for one port. The switch's lock protects everything but port and
// event.
type queue struct {
	port  string // name of the port
	event int    // eventfd, readable while the queue is not empty

	frames  ring.Queue[[]byte] // at most queueLen; the slots' memory is kept and used again
	dropped uint64             // frames dropped because the queue was full
	sink    [8]byte            // receives the value of the eventfd
}

// push copies a frame to the queue, or drops it when the queue is full.
func (q *queue) push(frame []byte) {
	if q.frames.Len() == queueLen {
		q.dropped++
		return
	}
	slot := q.frames.Push()
	*slot = append((*slot)[:0], frame...)
	if q.frames.Len() == 1 {
		q.signal()
	}
}

// pop removes and returns the next frame, which is valid until the next push. The queue must not be
// empty.
func (q *queue) pop() []byte {
	f := *q.frames.Pop()
	if q.frames.Len() == 0 {
		_, _ = unix.Read(q.event, q.sink[:]) // makes it unreadable again
	}
	return f
}

var one = [8]byte{0: 1}

// signal makes the eventfd readable. Adding one to a counter of at most one cannot fail.
func (q *queue) signal() { _, _ = unix.Write(q.event, one[:]) }

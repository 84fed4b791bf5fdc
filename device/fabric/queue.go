package fabric

import (
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/internal/ring"
)

const queueLen = 1024 // frames a port holds before it drops

// queue holds the frames that wait for one port. Everything but port and event is under the
// switch's lock.
type queue struct {
	port  string // its name
	event int    // eventfd, readable while the queue is not empty

	frames  ring.Queue[[]byte] // at most queueLen; the slots' memory is kept and used again
	dropped uint64             // frames for which there was no room
	sink    [8]byte            // what the eventfd held
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

// pop takes the next frame out; it is good until the next push. There must be one.
func (q *queue) pop() []byte {
	f := *q.frames.Pop()
	if q.frames.Len() == 0 {
		_, _ = unix.Read(q.event, q.sink[:]) // back to not readable
	}
	return f
}

var one = [8]byte{0: 1}

// signal makes the eventfd readable. Adding one to a counter of at most one cannot fail.
func (q *queue) signal() { _, _ = unix.Write(q.event, one[:]) }

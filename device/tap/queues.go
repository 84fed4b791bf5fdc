package tap

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// MaxQueues bounds the queues of a TAP.
const MaxQueues = 16

// queues holds the descriptors of one TAP. The kernel puts each flow that it sends to us into one
// of them, so that senders on several processors do not wait for each other. If there are several,
// an epoll instance reports which have frames.
//
//	bridge, processor 1 ──▶ queue 0 ─┐
//	bridge, processor 2 ──▶ queue 1 ─┴─▶ epoll ──▶ Read
type queues struct {
	fds    []int
	epoll  int // epoll instance if there are several; -1: only one
	first  int // rotates the order, so that all queues get their turn
	events [MaxQueues]unix.EpollEvent
	ready  [MaxQueues]int
}

func newQueues(fds []int) (q queues, err error) {
	q = queues{fds: fds, epoll: -1}
	if len(fds) == 1 {
		return q, nil
	}
	if q.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return q, fmt.Errorf("epoll: %w", err)
	}
	for _, fd := range fds {
		e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
		if err := unix.EpollCtl(q.epoll, unix.EPOLL_CTL_ADD, fd, &e); err != nil {
			return q, errors.Join(fmt.Errorf("epoll: %w", err), unix.Close(q.epoll))
		}
	}
	return q, nil
}

// fd returns a descriptor that is readable while a frame waits in any queue.
func (q *queues) fd() int {
	if q.epoll >= 0 {
		return q.epoll
	}
	return q.fds[0]
}

// waiting lists the queues that have frames, starting with another one each time.
func (q *queues) waiting() []int {
	if q.epoll < 0 {
		return q.fds
	}
	n := Ready(q.epoll, q.events[:])
	q.first++
	for i := range n {
		q.ready[i] = int(q.events[(q.first+i)%n].Fd)
	}
	return q.ready[:n]
}

// close closes the epoll instance; the descriptors belong to their opener.
func (q *queues) close() error {
	if q.epoll < 0 {
		return nil
	}
	return unix.Close(q.epoll)
}

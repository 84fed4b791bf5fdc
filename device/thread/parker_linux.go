package thread

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// parker lets one thread sleep until a file descriptor is readable, a guest rings, another
// goroutine wakes it, or a timeout ends, with nanosecond precision.
type parker struct {
	mu    sync.Mutex // guards event against wake after close
	event int        // eventfd, -1 when closed
	bells int        // epoll instance of the guests' eventfds
	fds   [4]unix.PollFd
	buf   [8]byte
	heard [64]unix.EpollEvent
	rung  []int // descriptors that rang, of the last wait
}

func newParker() (*parker, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	bells, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("epoll: %w", err), unix.Close(fd))
	}
	return &parker{event: fd, bells: bells}, nil
}

// wake makes the current or next wait return.
func (p *parker) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.event >= 0 {
		// EAGAIN means the counter is full: the sleeper will wake anyway.
		_, _ = unix.Write(p.event, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// listen makes waits end when fd, an eventfd, is written to, or stops that. Each write counts,
// whatever the counter was: nobody has to read it.
func (p *parker) listen(fd int, on bool) error {
	if !on {
		return unix.EpollCtl(p.bells, unix.EPOLL_CTL_DEL, fd, nil)
	}
	e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)}
	if err := unix.EpollCtl(p.bells, unix.EPOLL_CTL_ADD, fd, &e); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	return nil
}

// wait sleeps at most ns nanoseconds and reports whether there was input, from the uplink fd, the
// ports or elsewhere. A negative fd is not waited for. For the first held nanoseconds the thread
// keeps its processor of Go's scheduler.
func (p *parker) wait(fd, ports int, ns, held int64) bool {
	p.rung = p.rung[:0]
	for i, fd := range [...]int{p.event, fd, p.bells, ports} {
		p.fds[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	}
	n, interrupted := 0, false
	if held > 0 {
		n, interrupted = p.pollHeld(min(ns, held))
		ns -= held
	}
	if n == 0 && !interrupted && ns > 0 {
		timeout := unix.NsecToTimespec(ns)
		var err error
		n, err = unix.Ppoll(p.fds[:], &timeout, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			time.Sleep(time.Millisecond) // cannot happen with valid descriptors; keeps it from becoming a busy loop
			return false
		}
	}
	if p.fds[0].Revents != 0 {
		_, _ = unix.Read(p.event, p.buf[:])
	}
	if p.fds[2].Revents != 0 {
		n, _ := unix.EpollWait(p.bells, p.heard[:], 0)
		for _, e := range p.heard[:max(n, 0)] {
			p.rung = append(p.rung, int(e.Fd))
		}
	}
	return n > 0
}

func (p *parker) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = unix.Close(p.event)
	_ = unix.Close(p.bells)
	p.event, p.bells = -1, -1
}

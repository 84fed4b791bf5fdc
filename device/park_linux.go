package device

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// parker lets one thread sleep until a file descriptor is readable, another
// goroutine wakes it, or time is up, with nanosecond timeouts.
type parker struct {
	mu    sync.Mutex // guards event against wake after close
	event int        // eventfd, -1 when closed
	fds   [2]unix.PollFd
	buf   [8]byte
}

func newParker() (*parker, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return &parker{event: fd}, nil
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

// wait sleeps at most ns nanoseconds and reports whether there was input. A
// negative fd is not waited for.
func (p *parker) wait(fd int, ns int64) bool {
	p.fds[0] = unix.PollFd{Fd: int32(p.event), Events: unix.POLLIN}
	p.fds[1] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	timeout := unix.NsecToTimespec(ns)
	n, err := unix.Ppoll(p.fds[:], &timeout, nil)
	if err != nil && !errors.Is(err, unix.EINTR) {
		time.Sleep(time.Millisecond) // cannot happen with valid descriptors; never turn it into a busy loop
		return false
	}
	if p.fds[0].Revents != 0 {
		_, _ = unix.Read(p.event, p.buf[:])
	}
	return n > 0
}

func (p *parker) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = unix.Close(p.event)
	p.event = -1
}

// setTimerSlack asks the kernel for exact timeouts on this thread; the default
// of 50 µs would be added to each sleep.
func setTimerSlack() {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
}

// yieldThread lets other threads of this processor run.
func yieldThread() {
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}

package eventfd

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// None is no descriptor.
const None = -1

// Event is an eventfd, or a socket (CheckCall), that is signalled by the thread of its Line.
type Event struct {
	line    *Line
	due     atomic.Bool // it is to be signalled
	to      atomic.Pointer[target]
	request request // the thread's
}

// target is a descriptor of our own.
type target struct {
	fd     int
	socket bool // it is one (CheckCall)
}

// Set says which descriptor is signalled from now on; negative: none. The caller's may be closed
// then. What was to be signalled before still is.
func (e *Event) Set(fd int) error {
	var to *target
	if fd >= 0 {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("event descriptor: %w", err)
		}
		_, err = unix.GetsockoptInt(own, unix.SOL_SOCKET, unix.SO_TYPE)
		to = &target{own, err == nil}
	}
	e.line.replace(e, to)
	return nil
}

// Signal adds one to the counter, soon. A full counter, or socket, means that the other side has not
// looked yet, which is as good. It does not block, and takes no longer whatever the descriptor is.
func (e *Event) Signal() {
	if !e.due.Swap(true) {
		e.line.rouse()
	}
}

// signal is on the line's thread.
func (e *Event) signal(to *target) {
	switch c := kernel(); {
	case to == nil:
	case to.socket: // whatever the flags of its description say, a send like this does not wait
		_ = unix.Send(to.fd, one[:], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	case c == nil || !e.request.submit(c, to.fd):
		_, _ = unix.Write(to.fd, one[:])
	}
}

var one = [8]byte{1}

// Check accepts an eventfd and nothing else: what else there is could block, or be
// readable for ever.
func Check(fd int) error {
	if fd == None {
		return errors.New("the event descriptor is missing")
	}
	what, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return fmt.Errorf("event descriptor: %w", err)
	}
	if what != "anon_inode:[eventfd]" { // whole: a file may be called "x[eventfd]"
		return fmt.Errorf("the event descriptor is %q, want an eventfd", what)
	}
	return nil
}

// CheckCall accepts an eventfd, or a socket (CheckSocket): User Mode Linux has to be told of
// interrupts by signals, which eventfds do not send, and reads from a socket what it would from an
// eventfd.
func CheckCall(fd int) error {
	err := Check(fd)
	if err != nil && CheckSocket(fd) == nil {
		return nil
	}
	return err
}

// CheckSocket accepts a stream socket of the Unix family and nothing else.
func CheckSocket(fd int) error {
	family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return fmt.Errorf("the descriptor is no socket: %w", err)
	}
	if kind, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); family != unix.AF_UNIX || kind != unix.SOCK_STREAM {
		return fmt.Errorf("the socket is of family %d and type %d, want a stream socket of the Unix family", family, kind)
	}
	return nil
}

package eventfd

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// None is no descriptor.
const None = -1

// Event is an eventfd, or a socket (CheckCall), that is signalled for a guest.
type Event struct {
	notifier *Notifier
	due      atomic.Bool // the thread is to signal
	to       atomic.Pointer[target]

	using   sync.Mutex // whoever signals or closes a descriptor holds it
	request request    // guarded by using
}

// target is our copy of a descriptor.
type target struct {
	fd     int
	socket bool // instead of an eventfd (CheckCall)
}

// Set sets the descriptor that is signalled from now on; negative: none. It copies fd. A signal
// that is due already still goes to the earlier descriptor.
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
	e.notifier.replace(e, to)
	return nil
}

// Signal adds one to the counter, or makes the thread do it. If the counter (or socket) is full, the
// other side has not read it yet, and one more signal would tell it nothing new. Signal does not
// block. A guest whose signals are slow gets them from the thread (Notifier.owes).
func (e *Event) Signal() {
	if e.due.Load() || e.notifier.owes() || !e.signalHere() {
		if !e.due.Swap(true) {
			e.notifier.wake()
		}
	}
}

// signalHere signals on the caller's thread, if that cannot block.
func (e *Event) signalHere() bool {
	c := kernel()
	if c == nil || !e.using.TryLock() {
		return false
	}
	defer e.using.Unlock()
	switch to := e.to.Load(); {
	case to == nil:
		return true
	case to.socket:
		return false
	default:
		return e.notifier.measure(func() bool { return e.request.submit(c, to.fd) })
	}
}

// signal signals a descriptor. It runs on the notifier's thread.
func (e *Event) signal(to *target) {
	e.using.Lock()
	defer e.using.Unlock()
	switch c := kernel(); {
	case to == nil:
	case to.socket: // it does not wait, whatever the flags of the description are
		_ = unix.Send(to.fd, one[:], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	case c == nil || !e.request.submit(c, to.fd):
		_, _ = unix.Write(to.fd, one[:])
	}
}

var one = [8]byte{1}

// Check returns an error unless fd is an eventfd: another file could block, or be readable for
// ever.
func Check(fd int) error {
	if fd == None {
		return errors.New("the event descriptor is missing")
	}
	what, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return fmt.Errorf("event descriptor: %w", err)
	}
	if what != "anon_inode:[eventfd]" { // all of it: a file may be named "x[eventfd]"
		return fmt.Errorf("the event descriptor is %q, want an eventfd", what)
	}
	return nil
}

// CheckCall returns an error unless fd is an eventfd or a socket (CheckSocket). User Mode Linux
// needs a signal for each interrupt, which eventfds do not send, so it passes a socket and reads
// from that what it would read from an eventfd.
func CheckCall(fd int) error {
	err := Check(fd)
	if err != nil && CheckSocket(fd) == nil {
		return nil
	}
	return err
}

// CheckSocket returns an error unless fd is a stream socket of the Unix family.
func CheckSocket(fd int) error {
	family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return fmt.Errorf("the descriptor is not a socket: %w", err)
	}
	if kind, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); family != unix.AF_UNIX || kind != unix.SOCK_STREAM {
		return fmt.Errorf("the socket is of family %d and type %d, want a stream socket of the Unix family", family, kind)
	}
	return nil
}

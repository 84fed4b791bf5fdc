package eventfd

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Event is an eventfd, or a socket (CheckCall), that is signalled. Its methods may be called from
// several goroutines, and none of them blocks. The zero value has no descriptor.
type Event struct {
	mu      sync.Mutex
	fd      int  // plus one; 0: none
	socket  bool // it is one (CheckCall)
	request request
	writing bool // without AIO: a goroutine writes
	again   bool // and is to write once more
}

// None is no descriptor.
const None = -1

// Set says which descriptor is signalled from now on; negative: none. It stays the
// caller's, who sets another, or none, before closing it.
func (e *Event) Set(fd int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fd = max(fd, None) + 1
	_, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	e.socket = err == nil
}

// Signal adds one to the counter. A full counter, or socket, means that the other side has not
// looked yet, which is as good.
func (e *Event) Signal() {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.fd == 0:
		return
	case e.socket: // whatever the flags of its description say, a send like this does not wait
		_ = unix.Send(e.fd-1, one[:], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return
	}
	if c := kernel(); c != nil && e.request.submit(c, e.fd-1) {
		return
	}
	e.again = true
	if !e.writing {
		e.writing = true
		go e.write()
	}
}

// write signals where the kernel has no AIO. While QEMU makes it wait, further signals
// wait with it: one thread is all that a hostile QEMU gets for each Event.
func (e *Event) write() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.again && e.fd != 0 {
		e.again = false
		own, err := unix.FcntlInt(uintptr(e.fd-1), unix.F_DUPFD_CLOEXEC, 0) // the number may be reused meanwhile
		if err != nil {
			break
		}
		e.mu.Unlock()
		_, _ = unix.Write(own, one[:])
		_ = unix.Close(own)
		e.mu.Lock()
	}
	e.writing = false
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

package eventfd

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// iocb is struct iocb of linux/aio_abi.h on a little-endian machine.
type iocb struct {
	_         [2]uint64 // data, key and flags of the operation
	opcode    uint16
	_         int16 // priority
	fd        uint32
	_         [4]uint64 // buffer, its length, offset, reserved
	flags     uint32
	resultFD  uint32
	submitted *iocb // io_submit's argument points here; behind what the kernel reads
}

const (
	opRead       = 0 // IOCB_CMD_PREAD
	flagResultFD = 1 // IOCB_FLAG_RESFD
	maxRequests  = 64
)

// request is a request to the kernel, kept so that a signal allocates nothing.
type request struct{ cb iocb }

// context is an AIO context.
type context struct {
	id     uintptr
	mu     sync.Mutex // guards events
	events [maxRequests][4]uint64
}

// kernel returns the process's AIO context. It returns nil if there is none, or if it does not
// signal: before 5.8, Linux refuses the request instead of failing it.
var kernel = sync.OnceValue(func() *context {
	c := &context{}
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, maxRequests, uintptr(unsafe.Pointer(&c.id)), 0); errno != 0 {
		return nil
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	var r request
	var b [8]byte
	if !r.submit(c, fd) {
		return nil
	}
	if _, err := unix.Read(fd, b[:]); err != nil {
		return nil
	}
	return c
})

// submit makes the kernel signal fd, by a request to read no bytes from it. An eventfd is read 8
// bytes at a time, so the request fails at once, and its end is signalled.
func (r *request) submit(c *context, fd int) bool {
	r.cb = iocb{opcode: opRead, fd: uint32(fd), flags: flagResultFD, resultFD: uint32(fd)}
	r.cb.submitted = &r.cb
	for range 3 {
		_, _, errno := unix.Syscall(unix.SYS_IO_SUBMIT, c.id, 1, uintptr(unsafe.Pointer(&r.cb.submitted)))
		if errno != unix.EAGAIN {
			return errno == 0 // otherwise the request was not accepted
		}
		c.forget()
	}
	return false
}

// forget removes the results of requests from the context, to make room for more.
func (c *context) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _, _ = unix.Syscall6(unix.SYS_IO_GETEVENTS, c.id, 0, maxRequests, uintptr(unsafe.Pointer(&c.events)), 0, 0)
}

// Operations of futex(2), on memory of one process.
const (
	futexOpWait = 0 | 128
	futexOpWake = 1 | 128
)

// futexWait sleeps until it is woken, if word still has the value. It may return earlier.
func futexWait(word *atomic.Uint32, value uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexOpWait, uintptr(value), 0, 0, 0)
}

// futexWake wakes one thread that sleeps on word.
func futexWake(word *atomic.Uint32) {
	_, _, _ = unix.RawSyscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexOpWake, 1)
}

package eventfd

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Operations of futex(2), on memory of one process.
const (
	futexOpWait = 0 | 128
	futexOpWake = 1 | 128
)

// futexWait sleeps until somebody wakes it, if a word has a value still; it may return before.
func futexWait(word *atomic.Uint32, value uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexOpWait, uintptr(value), 0, 0, 0)
}

// futexWake wakes one thread that sleeps by a word. It does not wait.
func futexWake(word *atomic.Uint32) {
	_, _, _ = unix.RawSyscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexOpWake, 1)
}

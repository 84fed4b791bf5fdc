package thread

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// pollHeld waits as ppoll does, without telling Go's scheduler. A thread that tells it loses its
// processor when it sleeps for longer than 20 µs, and sysmon, which takes the processor away, then
// looks for more such threads every 20 µs: that cost a tenth of the processor time of a busy NIC. A
// thread that has to stop is interrupted by a signal.
func (p *parker) pollHeld(ns int64) (n int, interrupted bool) {
	timeout := unix.NsecToTimespec(ns)
	r, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p.fds)), uintptr(len(p.fds)), uintptr(unsafe.Pointer(&timeout)), 0, 0, 0)
	if errno != 0 {
		return 0, true // with valid descriptors only an interruption can happen
	}
	return int(r), false
}

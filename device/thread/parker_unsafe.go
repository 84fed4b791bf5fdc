package thread

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// pollHeld waits as ppoll does, without Go's scheduler hearing of it. A thread
// that tells it loses its processor when it sleeps for longer than 20 µs, and who
// takes it away, sysmon, then looks every 20 µs for more of the kind: a tenth of
// the processor time of a busy NIC. A thread that is to stop is interrupted.
func (p *parker) pollHeld(ns int64) (n int, interrupted bool) {
	timeout := unix.NsecToTimespec(ns)
	r, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p.fds)), uintptr(len(p.fds)), uintptr(unsafe.Pointer(&timeout)), 0, 0, 0)
	if errno != 0 {
		return 0, true // with valid descriptors nothing else can happen
	}
	return int(r), false
}

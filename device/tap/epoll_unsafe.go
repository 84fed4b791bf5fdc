package tap

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ready asks an epoll instance what is ready now and returns how many of events it filled in. It
// never waits, so the Go scheduler need not hear of it, which unix.EpollWait would tell.
func Ready(epoll int, events []unix.EpollEvent) int {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0 // with valid arguments only EINTR can happen
	}
	return int(n)
}

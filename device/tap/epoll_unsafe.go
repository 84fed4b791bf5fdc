package tap

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ready polls an epoll instance and returns how many events it stored. It never blocks, so unlike
// unix.EpollWait it does not inform the Go scheduler.
func Ready(epoll int, events []unix.EpollEvent) int {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0 // only EINTR is possible with valid arguments
	}
	return int(n)
}

package window

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ioctl calls ioctl(2) with a number as its argument.
func ioctl(fd int, request, arg uintptr) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, arg)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// ioctlGet calls ioctl(2) with a structure of at least one byte as its argument, and returns the
// result.
func ioctlGet(fd int, request uintptr, arg []byte) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(&arg[0])))
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}

func ioctlBytes(fd int, request uintptr, arg []byte) error {
	_, err := ioctlGet(fd, request, arg)
	return err
}

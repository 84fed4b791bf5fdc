package tap

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// vector is the scatter list of one frame: the virtio-net header, if any, and the frame. It is kept in the port so that a
// call allocates nothing. unix.Readv and Writev build theirs anew each time.
type vector struct {
	header [vnetHeaderLen]byte
	iov    [2]unix.Iovec
}

func (v *vector) set(header int, b []byte) (first *unix.Iovec, n uintptr) {
	v.iov[1].Base = unsafe.SliceData(b)
	v.iov[1].SetLen(len(b))
	if header == 0 {
		return &v.iov[1], 1
	}
	v.iov[0].Base = &v.header[0]
	v.iov[0].SetLen(header)
	return &v.iov[0], 2
}

// readv reads one frame into b and its header into v.header; it returns the bytes of both.
func (v *vector) readv(fd, header int, b []byte) (int, unix.Errno) {
	first, n := v.set(header, b)
	got, _, errno := unix.Syscall(unix.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(first)), n)
	v.iov[1].Base = nil // the buffer is the caller's again
	return int(got), errno
}

// writev writes one frame behind v.header, which is all zero: nothing for the kernel to complete.
func (v *vector) writev(fd, header int, b []byte) unix.Errno {
	first, n := v.set(header, b)
	_, _, errno := unix.Syscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(first)), n)
	v.iov[1].Base = nil
	return errno
}

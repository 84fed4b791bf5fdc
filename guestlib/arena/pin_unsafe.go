package arena

import (
	"io"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	ioringRegisterBuffers = 0       // IORING_REGISTER_BUFFERS, include/uapi/linux/io_uring.h
	ioringMaxBuffer       = 1 << 30 // the kernel refuses larger single buffers
	ioringParamsSize      = 120     // sizeof(struct io_uring_params)
)

// baseAddress returns the address of mem, which is never on the Go heap.
func baseAddress(mem []byte) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
}

// pinBuffers pins mem by registering it with a new io_uring instance. Closing the instance unpins.
//
// The instance is used for nothing else. Buffer registration is the only interface for unprivileged
// processes that takes a long-term pin (FOLL_LONGTERM) on user memory: the kernel moves pages out
// of movable zones first, and then they do not move any more.
func pinBuffers(mem []byte) (io.Closer, error) {
	var params [ioringParamsSize]byte
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params[0])), 0)
	if errno != 0 {
		return nil, os.NewSyscallError("io_uring_setup", errno)
	}
	ring := os.NewFile(fd, "io_uring")
	unix.CloseOnExec(int(fd))

	iov := make([]unix.Iovec, 0, len(mem)/ioringMaxBuffer+1)
	for rest := mem; len(rest) > 0; {
		part := rest[:min(len(rest), ioringMaxBuffer)]
		v := unix.Iovec{Base: unsafe.SliceData(part)}
		v.SetLen(len(part))
		iov = append(iov, v)
		rest = rest[len(part):]
	}
	_, _, errno = unix.Syscall6(unix.SYS_IO_URING_REGISTER, fd, ioringRegisterBuffers, uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)), 0, 0)
	runtime.KeepAlive(iov)
	if errno != 0 {
		ring.Close()
		return nil, os.NewSyscallError("io_uring_register", errno)
	}
	return ring, nil
}

// Addr returns the block's address in this process.
func (b *Block) Addr() uint64 { return baseAddress(b.Bytes()) }

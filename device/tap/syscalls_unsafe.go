package tap

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// vector is the scatter list of one frame or superframe. It is kept in the port so that a call does
// not allocate; unix.Readv and Writev build a new list each time.
type vector struct {
	header [vnetHeaderLen]byte // virtio-net header of a frame that is read, or of a superframe that is written
	zero   [vnetHeaderLen]byte // virtio-net header of a plain frame that is written: nothing to complete
	packet [maxHeaders]byte    // Ethernet, IP and UDP headers of a superframe
	iov    []unix.Iovec        // virtio-net header, frame; or virtio-net header, headers, payloads
}

func newVector(segments int) vector { return vector{iov: make([]unix.Iovec, 2+max(segments, 1))} }

func (v *vector) set(i int, b []byte) {
	v.iov[i].Base = unsafe.SliceData(b)
	v.iov[i].SetLen(len(b))
}

// call makes one readv or writev of the first n entries, leaving out the virtio-net header if there
// is none. The descriptor never blocks, so the Go scheduler is not informed.
func (v *vector) call(trap uintptr, fd, header, n int) (int, unix.Errno) {
	list := v.iov[:n]
	if header == 0 {
		list = list[1:]
	}
	got, _, errno := unix.RawSyscall(trap, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(list))), uintptr(len(list)))
	for i := 1; i < n; i++ {
		v.iov[i].Base = nil // release the caller's buffers
	}
	return int(got), errno
}

// readv reads one frame into b and its virtio-net header into v.header. It returns the length of
// both.
func (v *vector) readv(fd, header int, b []byte) (int, unix.Errno) {
	v.set(0, v.header[:])
	v.set(1, b)
	return v.call(unix.SYS_READV, fd, header, 2)
}

// writev writes one frame.
func (v *vector) writev(fd, header int, b []byte) unix.Errno {
	v.set(0, v.zero[:])
	v.set(1, b)
	_, errno := v.call(unix.SYS_WRITEV, fd, header, 2)
	return errno
}

// gather returns the run of frames that form one superframe, and writes its headers.
func (v *vector) gather(frames [][]byte) run {
	r := runOf(frames, len(v.iov)-2)
	if r.frames > 1 {
		putHeaders(v.header[:], v.packet[:], frames[0], r.total, r.headers)
	}
	return r
}

// writeSuper writes the superframe that gather found: its headers once, then the payloads of all
// frames, without copying them.
func (v *vector) writeSuper(fd, headers int, frames [][]byte) unix.Errno {
	v.set(0, v.header[:])
	v.set(1, v.packet[:headers])
	for i, f := range frames {
		v.set(2+i, f[headers:])
	}
	_, errno := v.call(unix.SYS_WRITEV, fd, vnetHeaderLen, 2+len(frames))
	return errno
}

// writeParts writes one frame of several parts behind v.header. It returns the total length.
func (v *vector) writeParts(fd int, parts [][]byte) (int, unix.Errno) {
	v.set(0, v.header[:])
	for i, b := range parts {
		v.set(1+i, b)
	}
	return v.call(unix.SYS_WRITEV, fd, vnetHeaderLen, 1+len(parts))
}

// Ready polls an epoll instance and returns how many events it stored. It never blocks, so unlike
// unix.EpollWait it does not inform the Go scheduler.
func Ready(epoll int, events []unix.EpollEvent) int {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0 // only EINTR is possible with valid arguments
	}
	return int(n)
}

// progLoad is the variant of union bpf_attr that loads a program.
type progLoad struct {
	kind, count      uint32
	code, license    uint64
	logLevel, logLen uint32
	log              uint64
	version, flags   uint32
}

// loadProgram loads a socket filter program into the kernel and returns its descriptor.
func loadProgram(code []uint64) (int, error) {
	license := []byte("Apache-2.0\x00")
	a := progLoad{
		kind: unix.BPF_PROG_TYPE_SOCKET_FILTER, count: uint32(len(code)),
		code: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(code)))), license: uint64(uintptr(unsafe.Pointer(&license[0]))),
	}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&a)), unsafe.Sizeof(a))
	runtime.KeepAlive(code)
	runtime.KeepAlive(license)
	if errno != 0 {
		return -1, os.NewSyscallError("bpf", errno)
	}
	return int(fd), nil
}

// steer makes the kernel choose the queue of each frame by a program.
func steer(device int, code []uint64) error {
	fd, err := loadProgram(code)
	if err != nil {
		return fmt.Errorf("load the program that steers frames: %w", err)
	}
	defer unix.Close(fd)
	program := int32(fd)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(device), unix.TUNSETSTEERINGEBPF, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return os.NewSyscallError("TUNSETSTEERINGEBPF", errno)
	}
	return nil
}

package tap

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

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

package sandbox

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// capabilities returns the thread's permitted set.
func capabilities() (permitted uint64, err error) {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if err := unix.Capget(&h, &d[0]); err != nil {
		return 0, fmt.Errorf("capabilities are not dropped: capget: %w", err)
	}
	return uint64(d[1].Permitted)<<32 | uint64(d[0].Permitted), nil
}

// setCapabilities sets the permitted and effective capabilities of every thread. The inheritable
// set becomes empty, and with it the ambient one.
func setCapabilities(set uint64) error {
	h := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	d := &[2]unix.CapUserData{
		{Effective: uint32(set), Permitted: uint32(set)},
		{Effective: uint32(set >> 32), Permitted: uint32(set >> 32)},
	}
	err := everyThread(unix.SYS_CAPSET, uintptr(unsafe.Pointer(h)), uintptr(unsafe.Pointer(d)))
	runtime.KeepAlive(h)
	runtime.KeepAlive(d)
	return err
}

// setThreadCapabilities sets the effective capabilities of this thread alone.
func setThreadCapabilities(set uint64) error {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if err := unix.Capget(&h, &d[0]); err != nil {
		return err
	}
	d[0].Effective, d[1].Effective = uint32(set), uint32(set>>32)
	return unix.Capset(&h, &d[0])
}

// install sets the seccomp filter of all threads.
func install(prog []unix.SockFilter) error {
	runtime.LockOSThread() // noNewPrivileges was on this thread, or the kernel has none
	defer runtime.UnlockOSThread()
	if err := noNewPrivileges(); err != nil {
		return fmt.Errorf("system calls are not restricted: %w", err)
	}
	p := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	tid, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&p)))
	switch {
	case errno != 0:
		return fmt.Errorf("system calls are not restricted: seccomp: %w", errno)
	case tid != 0:
		return fmt.Errorf("system calls are not restricted: thread %d has a filter of its own", tid)
	}
	return nil
}

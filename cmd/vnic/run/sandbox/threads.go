package sandbox

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// everyThread makes a system call on every thread of the process.
func everyThread(trap, a1, a2 uintptr) error {
	_, _, errno := syscall.AllThreadsSyscall(trap, a1, a2, 0)
	if errno == syscall.ENOTSUP {
		return errors.New("this program was built with cgo, and cannot reach all of its threads")
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// noNewPrivileges sets no_new_privs on this thread; seccomp's TSYNC sets it on the others.
func noNewPrivileges() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs is not set: %w", err)
	}
	return nil
}

package sandbox

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Enter restricts all threads of the process, for ever. Of its capabilities the process keeps those
// in keep. If a part cannot be done, the other parts are done all the same; the error joins the
// reasons.
func Enter(keep ...int) error {
	return errors.Join(dropCapabilities(keep), noNewPrivileges(), install(filter()))
}

// With runs f on a thread that has only the capabilities in keep, as all threads have after Enter:
// so a program learns beforehand what will be refused. The thread ends with f.
func With(keep []int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: no other goroutine gets this thread
		had, err := capabilities()
		if err == nil {
			err = setThreadCapabilities(had & setOf(keep))
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

func setOf(capabilities []int) (set uint64) {
	for _, c := range capabilities {
		set |= 1 << c
	}
	return set
}

// dropCapabilities takes all capabilities but those in keep from the process.
func dropCapabilities(keep []int) error {
	had, err := capabilities()
	if err != nil {
		return err
	}
	kept := setOf(keep)
	for c := range unix.CAP_LAST_CAP + 1 {
		if kept&(1<<c) == 0 && had&(1<<unix.CAP_SETPCAP) != 0 { // without CAP_SETPCAP the bounding set cannot be changed
			// EINVAL: the kernel does not know this capability
			if err := everyThread(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c)); err != nil && !errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("capabilities are not dropped: bounding set: %w", err)
			}
		}
	}
	if err := setCapabilities(had & kept); err != nil {
		return fmt.Errorf("capabilities are not dropped: %w", err)
	}
	return nil
}

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

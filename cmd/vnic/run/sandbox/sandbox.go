package sandbox

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Enter restricts all threads of the process, for ever. It keeps those of the
// capabilities that it has. The error joins what could not be done; the rest is.
func Enter(keep ...int) error {
	return errors.Join(dropCapabilities(keep), noNewPrivileges(), install(filter()))
}

// With runs f on a thread that has no other capabilities than these, as all threads have after
// Enter. It tells beforehand what will be refused then. The thread ends with f.
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

// dropCapabilities leaves the process with some capabilities, as far as it has them.
func dropCapabilities(keep []int) error {
	had, err := capabilities()
	if err != nil {
		return err
	}
	kept := setOf(keep)
	for c := range unix.CAP_LAST_CAP + 1 {
		if kept&(1<<c) == 0 && had&(1<<unix.CAP_SETPCAP) != 0 { // else there are none to come back to
			// EINVAL: a kernel that does not know so many
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

package sandbox

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Enter restricts all threads of the process, for ever. It keeps those of the
// capabilities that it has. The error joins what could not be done; the rest is.
func Enter(keep ...int) error {
	return errors.Join(dropCapabilities(keep), noNewPrivileges(), install(filter()))
}

// dropCapabilities leaves the process with some capabilities, as far as it has them.
func dropCapabilities(keep []int) error {
	had, err := capabilities()
	if err != nil {
		return err
	}
	var kept uint64
	for _, c := range keep {
		kept |= 1 << c
	}
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

package thread

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// CheckProcessor refuses a processor that this process may not use.
func CheckProcessor(cpu *int) error {
	if cpu == nil {
		return nil
	}
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return os.NewSyscallError("sched_getaffinity", err)
	}
	if allowed.IsSet(*cpu) {
		return nil
	}
	var list []string
	for i := range len(allowed) * strconv.IntSize {
		if allowed.IsSet(i) {
			list = append(list, strconv.Itoa(i))
		}
	}
	return fmt.Errorf("nic.cpu: processor %d is not there for this process; use one of %s, or leave it out", *cpu, strings.Join(list, ", "))
}

// keepToProcessor has the calling thread run on one processor, which CheckProcessor allowed, until
// free is called. A thread must not end before: one that Go starts in its place would inherit that.
func keepToProcessor(cpu int) (free func(), err error) {
	var before, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return nil, os.NewSyscallError("sched_getaffinity", err)
	}
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return nil, os.NewSyscallError("sched_setaffinity", err)
	}
	return func() { _ = unix.SchedSetaffinity(0, &before) }, nil
}

// setTimerSlack asks the kernel for exact timeouts on this thread; the default
// of 50 µs would be added to each sleep.
func setTimerSlack() {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
}

// yieldThread lets other threads of this processor run.
func yieldThread() {
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}

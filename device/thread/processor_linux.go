package thread

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// CheckProcessors returns an error if this process may not use one of the processors.
func CheckProcessors(cpus []int) error {
	if len(cpus) == 0 {
		return nil
	}
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return os.NewSyscallError("sched_getaffinity", err)
	}
	missing := slices.IndexFunc(cpus, func(cpu int) bool { return !allowed.IsSet(cpu) })
	if missing < 0 {
		return nil
	}
	var list []string
	for i := range len(allowed) * strconv.IntSize {
		if allowed.IsSet(i) {
			list = append(list, strconv.Itoa(i))
		}
	}
	return fmt.Errorf("nic.cpu: processor %d is not there for this process; use one of %s, or leave it out", cpus[missing], strings.Join(list, ", "))
}

// keepToProcessor pins the calling thread to one processor, which CheckProcessors allowed, until
// free is called. free must be called before the thread ends: a thread that Go starts in its place
// would inherit the pinning.
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

// setTimerSlack asks the kernel for exact timeouts on this thread; the default slack of 50 µs would
// be added to each sleep.
func setTimerSlack() {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
}

// timeSlice is how long the thread runs at a time while others wait for its processor, ns: the
// shortest that Linux accepts.
const timeSlice = 100_000

// ShortSlices asks the kernel for short time slices. A thread with short slices that wakes up runs
// at once, before one that computes and has longer slices, and does not wait for the end of that
// slice. The share of the processor does not change. Linux before 6.12 ignores it.
func ShortSlices() {
	a, err := unix.SchedGetAttr(0, 0)
	if err != nil || a.Policy != unix.SCHED_NORMAL {
		return
	}
	a.Runtime = timeSlice
	_ = unix.SchedSetAttr(0, a, 0)
}

// yieldThread lets other threads run on this processor.
func yieldThread() {
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}

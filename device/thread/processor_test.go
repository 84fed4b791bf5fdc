package thread

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// first returns the first processor of a set.
func first(set *unix.CPUSet) (cpu int) {
	for !set.IsSet(cpu) {
		cpu++
	}
	return cpu
}

// TestMissingProcessorIsRefused checks that an error names the processor that this process may not
// use, and those that it may.
func TestMissingProcessorIsRefused(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	cpu := first(&allowed)
	free, err := keepToProcessor(cpu)
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	other := cpu + 1
	want := fmt.Sprintf("nic.cpu: processor %d is not there for this process; use one of %d, or leave it out", other, cpu)
	if err := CheckProcessors([]int{cpu, other}); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	for _, cpus := range [][]int{{cpu}, nil} {
		if err := CheckProcessors(cpus); err != nil {
			t.Error(err)
		}
	}
}

// TestANormalThreadGetsAShortTimeSlice checks that a thread gets a short time slice, unless it has another policy than the
// normal one.
func TestANormalThreadGetsAShortTimeSlice(t *testing.T) {
	slice := func(policy uint32) (before, after uint64) {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
			a, err := unix.SchedGetAttr(0, 0)
			if err != nil {
				done <- err
				return
			}
			before, a.Policy = a.Runtime, policy
			err = unix.SchedSetAttr(0, a, 0)
			ShortSlices()
			a, err2 := unix.SchedGetAttr(0, 0)
			after = a.Runtime
			done <- errors.Join(err, err2)
		}()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		return before, after
	}
	before, after := slice(unix.SCHED_NORMAL)
	if before == 0 {
		t.Log("Linux before 6.12 takes no notice")
		return
	}
	if after != timeSlice {
		t.Errorf("%d ns at a time, %d before", after, before)
	}
	if before, after = slice(unix.SCHED_BATCH); after != before {
		t.Errorf("a thread with another policy: %d ns at a time, %d before", after, before)
	}
}

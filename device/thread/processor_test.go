package thread

import (
	"fmt"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// first is the first processor of a set.
func first(set *unix.CPUSet) (cpu int) {
	for !set.IsSet(cpu) {
		cpu++
	}
	return cpu
}

func TestProcessorThatIsNotThere(t *testing.T) {
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
	if err := CheckProcessors([]int{cpu}); err != nil {
		t.Error(err)
	}
}

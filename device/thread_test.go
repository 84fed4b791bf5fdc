package device

import (
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/config"
)

// keptTo counts the threads of this process that are pinned to the given processor.
func keptTo(t *testing.T, cpu int) (n int) {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range tasks {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		var set unix.CPUSet
		if unix.SchedGetaffinity(tid, &set) == nil && set.Count() == 1 && set.IsSet(cpu) { // threads come and go
			n++
		}
	}
	return n
}

// TestThreadKeepsToItsProcessor checks that nic.cpu pins the shard's thread, and no other thread of
// the process.
func TestThreadKeepsToItsProcessor(t *testing.T) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	if allowed.Count() < 2 {
		if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
			t.Fatal("this process has one processor, and VNIC_TEST_REQUIRE is set: give it two")
		}
		t.Skip("all threads keep to the one processor of this process")
	}
	cpu := first(&allowed)
	n, stop := runAlone(t, func(c *config.Config) { c.NIC.CPU = []int{cpu} })
	if _, err := n.Routes(t.Context()); err != nil { // the shard answered: its thread runs
		t.Error(err)
	}
	got := keptTo(t, cpu)
	for wait := time.Now().Add(time.Minute); got != 1 && time.Now().Before(wait); got = keptTo(t, cpu) {
		time.Sleep(time.Millisecond) // a thread of an earlier NIC may not have ended yet
	}
	if got != 1 {
		t.Errorf("%d threads keep to processor %d", got, cpu)
	}
	stop()
}

// first returns the first processor of a set.
func first(set *unix.CPUSet) (cpu int) {
	for !set.IsSet(cpu) {
		cpu++
	}
	return cpu
}

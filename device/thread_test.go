package device

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/fabric"
)

// keptTo counts the threads of this process that may run on the given processor alone.
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

// TestThreadKeepsToItsProcessor: nic.cpu holds for the shard's thread, and for no other of the process.
func TestThreadKeepsToItsProcessor(t *testing.T) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	if allowed.Count() < 2 {
		t.Skip("the machine has one processor for this process: all threads keep to it")
	}
	cpu := 0
	for !allowed.IsSet(cpu) {
		cpu++
	}
	cfg := testConfig(t, 1, "/nowhere", [2]string{"127.0.0.1:1", "127.0.0.1:2"})
	cfg.Peers, cfg.Control, cfg.NIC.CPU = nil, "", &cpu
	port, err := fabric.New(testMTU).Port("kept")
	if err != nil {
		t.Fatal(err)
	}
	n, err := NewNIC(cfg, Deps{Uplink: port})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { err = n.Run(ctx) })
	<-n.Ready()
	if _, err := n.Routes(ctx); err != nil { // the shard answered: its thread runs
		t.Error(err)
	}
	got := keptTo(t, cpu)
	for wait := time.Now().Add(5 * time.Second); got != 1 && time.Now().Before(wait); got = keptTo(t, cpu) {
		time.Sleep(time.Millisecond) // a NIC's thread of before may not have ended yet
	}
	if got != 1 {
		t.Errorf("%d threads keep to processor %d", got, cpu)
	}
	cancel()
	wg.Wait()
	if err != nil {
		t.Error(err)
	}
}

func TestProcessorThatIsNotThere(t *testing.T) {
	cpu := 1023
	err := checkProcessor(&cpu)
	if err == nil {
		t.Skip("the machine has 1024 processors")
	}
	if got := err.Error(); !strings.HasPrefix(got, "nic.cpu: processor 1023 is not there for this process; use one of ") || !strings.HasSuffix(got, ", or leave it out") {
		t.Error(got)
	}
}

package device

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/guestlib"
)

// What a second processor brings: two NICs over TAPs on a bridge, sealed, and their clients, all on
// one processor and with a shard for each NIC; beside the same on two processors, with two shards
// for each, a pair of functions and its client on each processor. The load is the same. Each
// measurement is a process of its own, so that the Go runtime sees as many processors as it has;
// both take turns, and the figure is the median of the pairs. On a machine that others use the time
// means little; what the processors spent on it (…_cpu, two over one) still does.

const (
	shardsTurns = 5
	shardsEnv   = "VNIC_BENCH_SHARDS" // set for the process that measures
)

// BenchmarkShards reports how much faster two processors are than one.
func BenchmarkShards(b *testing.B) {
	if os.Getenv(shardsEnv) != "" {
		b.Skip("this process measures")
	}
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil || allowed.Count() < 2 {
		b.Skip("this process has one processor")
	}
	if os.Geteuid() != 0 {
		b.Skip("TAPs need root")
	}
	for _, what := range []string{"write64k", "write64"} {
		b.Run(what, func(b *testing.B) {
			var faster, dearer []float64
			for b.Loop() {
				for range shardsTurns {
					one, two := measureOn(b, what, 1), measureOn(b, what, 2)
					faster = append(faster, one.took.Seconds()/two.took.Seconds())
					dearer = append(dearer, two.spent.Seconds()/one.spent.Seconds())
				}
			}
			slices.Sort(faster)
			slices.Sort(dearer)
			b.ReportMetric(faster[len(faster)/2], "rdma/"+what+"_shards2_over_1")
			b.ReportMetric(dearer[len(dearer)/2], "rdma/"+what+"_shards2_over_1_cpu")
			b.Logf("%s: %.2f times as fast for %.2f times the processor time", what, faster, dearer)
		})
	}
}

// measured is the time that a load took, and the processor time spent on it.
type measured struct{ took, spent time.Duration }

// measureOn measures in a process with this many processors.
func measureOn(b *testing.B, what string, processors int) (m measured) {
	b.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestMeasureShards$", "-test.v")
	cmd.Env = append(os.Environ(), shardsEnv+"="+what+" "+strconv.Itoa(processors))
	out, err := startOn(cmd, processors)
	if err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	_, said, _ := strings.Cut(string(out), "took ")
	if _, err := fmt.Sscanf(said, "%d %d", &m.took, &m.spent); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	return m
}

// startOn runs a command on the first of our processors.
func startOn(cmd *exec.Cmd, processors int) ([]byte, error) {
	runtime.LockOSThread() // the child inherits the thread's processors
	defer runtime.UnlockOSThread()
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return nil, err
	}
	var few unix.CPUSet
	for cpu := 0; few.Count() < processors; cpu++ {
		if before.IsSet(cpu) {
			few.Set(cpu)
		}
	}
	if err := unix.SchedSetaffinity(0, &few); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Start()
	if e := unix.SchedSetaffinity(0, &before); err == nil {
		err = e
	}
	if err == nil {
		err = cmd.Wait()
	}
	return out.Bytes(), err
}

// TestMeasureShards runs in the process that measures.
func TestMeasureShards(t *testing.T) {
	what, n, found := strings.Cut(os.Getenv(shardsEnv), " ")
	if !found {
		return // this is not such a process
	}
	processors, err := strconv.Atoi(n)
	must(t, err)
	m := measureShards(t, what, processors)
	fmt.Printf("took %d %d\n", m.took, m.spent)
}

func measureShards(t *testing.T, what string, processors int) (m measured) {
	size, n := 65536, 6000
	if what == "write64" {
		size, n = 64, 150_000
	}
	cpus := processorsOfOurs(t)[:processors]
	change := func(_ int, c *config.Config) { c.NIC.Shards, c.NIC.CPU = processors, cpus }
	onTAPs(t, [2]string{config.SuperframesAuto, config.SuperframesAuto}, func(w *world) {
		var rigs []*rig
		for vf := 1; vf <= 2; vf++ { // on the shards 1 and 0, or both on 0
			name := fmt.Sprintf("pf0.vf%d", vf)
			x, y := newDeepEndpoint(t, w.open(0, name)), newDeepEndpoint(t, w.open(1, name))
			connect(t, x, y, uint64(vf))
			rigs = append(rigs, &rig{w: w, from: x, to: y})
		}
		load := func(n int) measured {
			var clients sync.WaitGroup
			start, spent := time.Now(), processorTime(t)
			for vf, r := range rigs {
				clients.Go(func() {
					keepTo(t, cpus[(vf+1)%processors]) // beside its functions' shards
					r.stream(t, guestlib.Write, size, n)
				})
			}
			clients.Wait()
			return measured{time.Since(start), processorTime(t) - spent}
		}
		load(n / 4)
		m = load(n)
	}, change)
	return m
}

// processorTime returns the processor time of this process, in user and kernel mode.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	must(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func processorsOfOurs(t testing.TB) (cpus []int) {
	t.Helper()
	var allowed unix.CPUSet
	must(t, unix.SchedGetaffinity(0, &allowed))
	for cpu := 0; len(cpus) < allowed.Count(); cpu++ {
		if allowed.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// keepTo pins the calling goroutine to one processor until it ends.
func keepTo(t testing.TB, cpu int) {
	t.Helper()
	runtime.LockOSThread()
	var one unix.CPUSet
	one.Set(cpu)
	must(t, unix.SchedSetaffinity(0, &one))
}

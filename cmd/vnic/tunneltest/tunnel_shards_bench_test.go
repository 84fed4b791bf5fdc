package tunneltest_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/netns"
)

const (
	shardsTurns   = 5
	shardsSeconds = "3"
	shardsStreams = 4
)

// BenchmarkTunnelShards reports what a second processor brings plain IP. Four TCP streams go
// through the tunnel, each between functions of its own. On one processor run both NICs, with one
// shard each, and all iperf3. On two processors each NIC has two shards, and each shard's two
// streams have their iperf3 on its processor. Both take turns, and the figure is the median of the
// pairs. On a machine that others use, the rate means little; the processor time for a byte (…_cpu,
// two over one) does.
func BenchmarkTunnelShards(b *testing.B) {
	vnictest.RequireRoot(b)
	for _, tool := range []string{"iperf3", "taskset"} {
		_, err := exec.LookPath(tool)
		vnictest.Require(b, err == nil, tool+" is not installed (make deps)")
	}
	two := firstProcessors(b, 2)
	vnictest.Require(b, len(two) == 2, "this process has one processor")
	vnictest.Program(b)
	netns.Run(b, func() {
		x := newBoxes(b, 1500)
		x.unpaced()
		ways := [2]*shardedTunnel{x.sharded(1, two[:1]), x.sharded(1+shardsStreams, two)}
		defer func() {
			for _, w := range ways {
				w.end()
			}
		}()
		var faster, dearer []float64
		for b.Loop() {
			for range shardsTurns {
				one, two := ways[0].run(x), ways[1].run(x)
				faster = append(faster, two.rate/one.rate)
				dearer = append(dearer, two.spent/one.spent)
				b.Logf("%.2f Gbit/s on one processor, %.2f on two, where %d frames came to the wrong shard", one.rate/1e9, two.rate/1e9, ways[1].steered(x))
			}
		}
		slices.Sort(faster)
		slices.Sort(dearer)
		b.ReportMetric(faster[len(faster)/2], "tunnel/tcp_shards2_over_1")
		b.ReportMetric(dearer[len(dearer)/2], "tunnel/tcp_shards2_over_1_cpu")
		b.ReportMetric(0, "ns/op") // says nothing
		b.Logf("%.2f times the rate for %.2f times the processor time of a byte", faster, dearer)
	})
}

// shardedTunnel is a tunnel whose NICs have a shard on each of its processors.
type shardedTunnel struct {
	*tunnel
	processors []int
	servers    []*labkit.Process // of iperf3, a stream each
}

// sharded starts the NICs and the servers.
func (b *boxes) sharded(net int, processors []int) *shardedTunnel {
	b.t.Helper()
	w := &shardedTunnel{
		tunnel:     b.vnic(net, vnicOptions{superframes: config.SuperframesAuto, streams: shardsStreams, keepTo: processors}),
		processors: processors,
	}
	for k := range shardsStreams {
		b.must(b.spaces[1].Do(func() error {
			argv := on(w.beside(k), "iperf3", "-s", "--forceflush", "-B", boxAddress(net+k, 2))
			p, err := labkit.StartCommand("iperf3", exec.Command(argv[0], argv[1:]...))
			if err == nil {
				w.servers = append(w.servers, p)
				w.stop = append(w.stop, func() { p.Stop(0) })
			}
			return err
		}))
		vnictest.Eventually(b.t, "the tunnel", func() error { // resolves addresses, shakes hands
			_, err := b.in(0, "ping", "-c", "1", "-W", "5", boxAddress(net+k, 2))
			return err
		})
	}
	return w
}

// beside returns the processor of the shard that has a stream's functions (config.Config.ShardOf).
func (w *shardedTunnel) beside(stream int) []int {
	vf := stream + 1
	return []int{w.processors[vf%len(w.processors)]}
}

// carried is what all streams together achieved: bits per second, and processor time per byte in
// ns.
type carried struct{ rate, spent float64 }

func (w *shardedTunnel) run(x *boxes) (c carried) {
	x.t.Helper()
	var (
		clients sync.WaitGroup
		guard   sync.Mutex
		bytes   float64
	)
	before := w.spent(x.t)
	for k := range shardsStreams {
		clients.Go(func() {
			var r iperf
			argv := on(w.beside(k), "iperf3", "-J", "-c", boxAddress(w.net+k, 2), "-t", shardsSeconds, "-C", "cubic")
			out, err := x.in(0, argv...)
			if err == nil {
				err = json.Unmarshal([]byte(out), &r)
			}
			guard.Lock()
			defer guard.Unlock()
			if err != nil {
				x.t.Errorf("stream %d: %v", k, err)
			}
			c.rate += r.End.Received.BitsPerSecond
			bytes += r.End.Received.Bytes
		})
	}
	clients.Wait()
	if x.t.Failed() {
		x.t.FailNow()
	}
	c.spent = float64(w.spent(x.t)-before) / bytes
	return c
}

// steered returns how many frames the first NIC's shards have handed to each other.
func (w *shardedTunnel) steered(x *boxes) uint64 {
	x.t.Helper()
	c, err := control.NewClient(w.control).Counters(x.t.Context())
	x.must(err)
	return c["shard.steered"] + c["gateway.handed_over"]
}

// spent returns the processor time of the NICs, of the servers and of all clients that have ended.
func (w *shardedTunnel) spent(t testing.TB) (sum time.Duration) {
	t.Helper()
	for _, p := range slices.Concat(w.nics[:], w.servers) {
		sum += processorTime(t, p.Cmd.Process.Pid)
	}
	var ended unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &ended); err != nil {
		t.Fatal(fmt.Errorf("getrusage: %w", err))
	}
	return sum + time.Duration(ended.Utime.Nano()+ended.Stime.Nano())
}

// firstProcessors returns the first n processors that this process may use, or all if there are
// fewer.
func firstProcessors(t testing.TB, n int) (cpus []int) {
	t.Helper()
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	for cpu := 0; len(cpus) < min(n, allowed.Count()); cpu++ {
		if allowed.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

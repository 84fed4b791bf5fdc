package tunneltest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
)

// BenchmarkTunnelIdle measures the share of a processor that an idle NIC takes with 64 functions
// that have ports.
func BenchmarkTunnelIdle(b *testing.B) {
	vnictest.RequireRoot(b)
	const functions, idle = 64, 10 * time.Second
	for b.Loop() {
		netns.Run(b, func() {
			p := startIdle(b, functions)
			defer p.Stop(5 * time.Second)
			time.Sleep(2 * time.Second) // what the kernel says over new links
			before := processorTime(b, p.Cmd.Process.Pid)
			time.Sleep(idle)
			b.ReportMetric(float64(processorTime(b, p.Cmd.Process.Pid)-before)/float64(idle), "tunnel/idle64_cpu_over_core")
		})
	}
	b.ReportMetric(0, "ns/op") // says nothing
}

// startIdle starts a NIC with functions that have ports.
func startIdle(b *testing.B, functions int) *labkit.Process {
	b.Helper()
	dir := b.TempDir()
	if err := tap.NewBridge("br0", 1500); err != nil {
		b.Fatal(err)
	}
	socket := filepath.Join(dir, "ctl")
	var text strings.Builder
	fmt.Fprintf(&text, "nic: {host: 1}\ncontrol: %s\nuplink: {name: up1, bridge: br0, mtu: 1500, address: 10.94.0.1/24}\nrdma: {mtu: 1024}\nfunctions:\n  - pf: 0\n    vf_count: %d\n    vfs:\n", socket, functions)
	for i := range functions {
		fmt.Fprintf(&text, "      - {vf: %d, tenant: %d, address: 10.93.0.%d, port: {mode: direct, name: vp%d}}\n", i+1, i/8+1, i+1, i+1)
	}
	config, log := filepath.Join(dir, "nic.yaml"), filepath.Join(dir, "log")
	if err := os.WriteFile(config, []byte(text.String()), 0o644); err != nil {
		b.Fatal(err)
	}
	p, err := labkit.Start("vnic run", log, vnictest.Program(b), "run", "-c", config)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := p.Until(ctx, func(ctx context.Context) error {
		_, err := control.NewClient(socket).NIC(ctx)
		return err
	}); err != nil {
		b.Logf("%s", must(os.ReadFile(log)))
		b.Fatal(err)
	}
	return p
}

func must[T any](v T, _ error) T { return v }

// processorTime returns the processor time of a process and of those it started, because vnic run
// leaves the work to another process.
func processorTime(b testing.TB, pid int) (sum time.Duration) {
	b.Helper()
	children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, c := range children {
		list, _ := os.ReadFile(c)
		for _, child := range strings.Fields(string(list)) {
			if n, err := strconv.Atoi(child); err == nil {
				sum += processorTime(b, n)
			}
		}
	}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, f := range files {
		var ns int64
		if text, err := os.ReadFile(f); err == nil {
			if _, err := fmt.Sscan(string(text), &ns); err != nil {
				b.Fatal(err)
			}
		}
		sum += time.Duration(ns)
	}
	if len(files) == 0 {
		b.Fatalf("process %d is gone", pid)
	}
	return sum
}

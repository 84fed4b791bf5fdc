package linuxtest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/qemu/image"
)

// Packages and modules that the guests need besides vnic to measure Soft-RoCE. The libraries that
// perftest is linked with are added automatically.
var (
	rxePrograms = []string{"ib_write_bw", "ib_write_lat"}
	rxeModules  = []string{"virtio_net", "crc32_generic", "rdma_rxe", "ib_uverbs"}
	rxeProvider = []string{"/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", "/etc/libibverbs.d/rxe.driver"}
)

// rxeRuns is odd, because medians are reported.
const rxeRuns = 5

// BenchmarkRXE measures RDMA between two QEMU guests by vnic, with doorbells in
// windows and sealed packets on TAPs, and by Linux' Soft-RoCE over virtio-net on
// a bridge, in turn, in the same guests.
func BenchmarkRXE(b *testing.B) {
	vnictest.RequireGuests(b)
	var programs []string
	for _, p := range rxePrograms {
		at, err := exec.LookPath(p)
		vnictest.Require(b, err == nil, p+" is not installed: apt-get install perftest ibverbs-providers")
		programs = append(programs, at)
	}
	for _, p := range rxeProvider {
		_, err := os.Stat(p)
		vnictest.Require(b, err == nil, p+" is missing: apt-get install ibverbs-providers")
	}
	ctx, cancel := context.WithTimeout(b.Context(), 20*time.Minute)
	defer cancel()
	m := perfMachine(b, ctx, programs)
	for b.Loop() {
		vnictest.InLab(b, true, func(l *vnictest.Lab) {
			bandwidth, latency := besideRXE(l, ctx, m)
			for system, suffix := range map[string]string{"vnic": "", "rxe": "@rxe"} {
				b.ReportMetric(vnictest.Median(bandwidth[system]), "guest/write64k_mbs"+suffix)
				b.ReportMetric(vnictest.Median(latency[system]), "guest/write64_lat_us"+suffix)
			}
			b.Logf("write_bw 64 KiB, MB/s: %v; write_lat 64 B, µs: %v", bandwidth, latency)
		})
	}
}

// perfMachine is a guest with the programs of both systems.
func perfMachine(b *testing.B, ctx context.Context, programs []string) qemu.Machine {
	cache, err := image.DefaultCache()
	if err != nil {
		b.Fatal(err)
	}
	k, err := image.FetchKernel(ctx, cache)
	vnictest.Require(b, err == nil, fmt.Sprint("no guest kernel: ", err))
	dir := b.TempDir()
	init, initrd := filepath.Join(dir, "perfguest"), filepath.Join(dir, "initramfs.cpio")
	if err := vnictest.Build(init, "../../../qemu/perfguest"); err != nil {
		b.Fatal(err)
	}
	if err := (image.Initramfs{
		Kernel: k, Init: init, Modules: slices.Concat(image.VsockModules, rxeModules), Programs: append(programs, vnictest.Program(b)), Files: rxeProvider,
	}).Write(initrd); err != nil {
		b.Fatal(err)
	}
	return qemu.Machine{Memory: 512, Kernel: k.Boot(), Initrd: initrd}
}

// besideRXE runs both guests and returns the client's measurements by system.
func besideRXE(l *vnictest.Lab, ctx context.Context, m qemu.Machine) (bandwidth, latency map[string][]float64) {
	const bridge = "rxe-br0"
	if err := tap.NewBridge(bridge, vnictest.MTU); err != nil {
		l.T.Fatal(err)
	}
	for i := range l.NICs {
		l.Start(i)
	}
	l.Joined()
	for i, role := range []string{"server", "client"} {
		h := l.Hosts[i]
		nic, err := tap.OpenGuest(fmt.Sprintf("rxe%d", i), bridge, vnictest.MTU)
		if err != nil {
			l.T.Fatal(err)
		}
		defer nic.Close()
		console := filepath.Join(l.Dir, role+".log")
		g := m
		if err := h.Attach(&g); err != nil {
			l.T.Fatal(err)
		}
		g.Console = qemu.FileChardev(console)
		g.NICs = []qemu.NIC{{TAP: nic, MAC: fmt.Sprintf("52:54:00:00:00:0%d", i+1), MTU: vnictest.MTU}}
		g.InitArgs = []string{role, fmt.Sprintf("10.77.0.%d/24", i+1), fmt.Sprintf("10.77.0.%d", 2-i), h.PeerGI, strconv.Itoa(rxeRuns)}
		vm, err := qemu.Start(ctx, g)
		if err != nil {
			l.T.Fatal(err)
		}
		defer vm.Stop()
		defer func() {
			if text, _ := os.ReadFile(console); l.T.Failed() {
				l.T.Logf("%s:\n%s", role, text)
			}
		}()
		if role == "client" {
			return measurements(l, vm)
		}
	}
	return nil, nil
}

// rxeRow matches the numbers in the row after the names of the columns.
var rxeRow = regexp.MustCompile(`(?m)^ #bytes.*\n((?: *[\d.]+)+)`)

// measurements reads the client's output to its end.
func measurements(l *vnictest.Lab, vm *qemu.Process) (bandwidth, latency map[string][]float64) {
	bandwidth, latency = map[string][]float64{}, map[string][]float64{}
	n := 0
	for lines := bufio.NewScanner(vm.Output()); lines.Scan(); n++ {
		var m struct{ System, Test, Output string }
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			l.T.Fatalf("%v: %s", err, lines.Text())
		}
		if strings.Contains(m.Output, noClock) {
			l.T.Logf("%s of %s has no figures: perftest could not tell the clock's rate", m.Test, m.System)
			continue
		}
		into, i := bandwidth, averageMBs
		if m.Test == "write_lat" {
			into, i = latency, typicalUS
		}
		into[m.System] = append(into[m.System], column(l.T, m.Output, i))
	}
	if n != 4*rxeRuns {
		l.T.Fatalf("%d measurements, want %d", n, 4*rxeRuns)
	}
	if len(bandwidth) != 2 || len(latency) != 2 {
		l.T.Fatalf("figures are missing: bandwidth %v, latency %v", bandwidth, latency)
	}
	return bandwidth, latency
}

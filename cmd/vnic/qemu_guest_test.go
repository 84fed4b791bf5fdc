package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/qemu/image"
)

// guestFiles are a kernel and an initramfs with this program in it.
type guestFiles struct {
	kernel, initrd string
	iommu          bool // give the guest one
}

// buildQEMUGuest skips what this machine cannot boot, or fails it where it must run.
func buildQEMUGuest(tb testing.TB, ctx context.Context) guestFiles {
	tb.Helper()
	need := func(err error, what string) {
		tb.Helper()
		if err == nil {
			return
		}
		if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
			tb.Fatalf("%s: %v", what, err)
		}
		tb.Skipf("%s: %v", what, err)
	}
	for _, tool := range []string{"qemu-system-x86_64", "apt-get", "dpkg-deb", "go"} {
		_, err := exec.LookPath(tool)
		need(err, tool)
	}
	cache, err := image.DefaultCache()
	if err != nil {
		tb.Fatal(err)
	}
	k, err := image.FetchKernel(ctx, cache)
	need(err, "guest kernel")
	dir := tb.TempDir()
	program := filepath.Join(dir, "vnic")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("build: %v\n%s", err, out)
	}
	initrd := filepath.Join(dir, "initramfs")
	if err := (image.Initramfs{Kernel: k, Init: program, Modules: slices.Concat(image.VsockModules, image.VFIOModules)}).Write(initrd); err != nil {
		tb.Fatal(err)
	}
	return guestFiles{kernel: k.Image, initrd: initrd}
}

// serveConfig runs a NIC of its own in-memory fabric until the test ends.
func serveConfig(tb testing.TB, path string) {
	tb.Helper()
	serveOn(tb, fabric.New(4500), path)
}

// serveOn runs a NIC on an in-memory fabric until the test ends.
func serveOn(tb testing.TB, segment *fabric.Switch, path string) {
	tb.Helper()
	cfg, err := config.Load(path)
	if err != nil {
		tb.Fatal(err)
	}
	log, err := newLog("error")
	if err != nil {
		tb.Fatal(err)
	}
	uplink, err := segment.Port(cfg.Uplink.Name)
	if err != nil {
		tb.Fatal(err)
	}
	attachments, err := attach(cfg, log)
	if err != nil {
		tb.Fatal(err)
	}
	nic, err := device.NewNIC(cfg, device.Deps{Uplink: uplink, Attachments: attachments, Log: log})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- nic.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			tb.Error(err)
		}
	})
	select {
	case <-nic.Ready():
	case err := <-ended:
		ended <- nil
		tb.Fatal(err)
	}
}

// bootPrinted starts guest 1001 by the line that `vnic qemu` prints, in which a
// vnic command runs, and returns what the command printed.
func bootPrinted(tb testing.TB, ctx context.Context, configPath string, g guestFiles, command ...string) []byte {
	tb.Helper()
	dir := tb.TempDir()
	console, output := filepath.Join(dir, "console"), filepath.Join(dir, "output")
	line, err := runHere(tb, "qemu", "-c", configPath, "--guest", "1001", "--memory", "256M", "--kernel", g.kernel, "--initrd", g.initrd, fmt.Sprintf("--iommu=%t", g.iommu),
		"--append", "console=ttyS0 panic=-1 loglevel=4 random.trust_cpu=on mitigations=off no_timer_check -- "+strings.Join(command, " "),
		"--", "-nodefaults", "-no-reboot", "-serial", "file:"+console, "-serial", "file:"+output,
	)
	if err != nil {
		tb.Fatal(err)
	}
	sh := exec.CommandContext(ctx, "sh", "-c", "exec "+strings.TrimSpace(stripComments(line)))
	sh.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	sh.Cancel = func() error { return syscall.Kill(-sh.Process.Pid, syscall.SIGKILL) }
	out, err := sh.CombinedOutput()
	said, rerr := os.ReadFile(output)
	if err != nil || rerr != nil || len(said) == 0 {
		log, _ := os.ReadFile(console)
		tb.Fatalf("%v %v\n%s\n%s\nconsole:\n%s", err, rerr, line, out, log)
	}
	return said
}

func stripComments(s string) string {
	var b strings.Builder
	for l := range strings.Lines(s) {
		if !strings.HasPrefix(l, "#") {
			b.WriteString(l)
		}
	}
	return b.String()
}

// TestQEMULineBoots runs the printed line as a shell would and lets the guest say
// which function it has, by which path it rings, and what that costs.
func TestQEMULineBoots(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	g := buildQEMUGuest(t, ctx)
	for _, path := range []string{"vsock", "ivshmem"} {
		t.Run(path, func(t *testing.T) {
			config := writeQEMUConfig(t, fmt.Sprintf(qemuGuestConfig, filepath.Join(t.TempDir(), "g1"), path == "ivshmem"))
			serveConfig(t, config)
			l := guestLatency(t, ctx, config, g, path)
			t.Logf("%+v", l)
		})
	}
}

const qemuGuestConfig = `
nic: {host: 1}
uplink: {backend: memory, name: up1, mtu: 4500, address: 10.99.0.1/24}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 100, address: 192.168.100.11, guest: {cid: 1001}}
attach:
  - {type: vhost-user, socket: %s, cid: 1001, windows: %t}
`

// BenchmarkGuestLatency measures in a guest what reaching the NIC costs.
func BenchmarkGuestLatency(b *testing.B) {
	ctx, cancel := context.WithTimeout(b.Context(), 3*time.Minute)
	defer cancel()
	g := buildQEMUGuest(b, ctx)
	for b.Loop() {
		for _, path := range []string{"vsock", "ivshmem"} {
			config := writeQEMUConfig(b, fmt.Sprintf(qemuGuestConfig, filepath.Join(b.TempDir(), path), path == "ivshmem"))
			serveConfig(b, config)
			l := guestLatency(b, ctx, config, g, path)
			b.ReportMetric(l.DoorbellUS, "guest/doorbell_"+path+"_us")
		}
	}
}

// guestLatency boots guest 1001 and lets it measure the path it is to use.
func guestLatency(tb testing.TB, ctx context.Context, configPath string, g guestFiles, path string) guestlib.Latency {
	tb.Helper()
	said := bootPrinted(tb, ctx, configPath, g, "guest", "info", "--json", "--samples", "2000", "--device", "vsock://2:7000?function=pf0.vf1")
	var info struct {
		Tenant  uint32
		Path    string
		Latency guestlib.Latency
	}
	if err := json.Unmarshal(said, &info); err != nil || info.Tenant != 100 {
		tb.Fatalf("%v: %s", err, said)
	}
	if info.Path != path || info.Latency.Samples != 2000 || info.Latency.DoorbellUS <= 0 {
		tb.Fatalf("path %q, %+v; want path %s", info.Path, info.Latency, path)
	}
	return info.Latency
}

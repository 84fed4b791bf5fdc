package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/falcon-vnic/vnic/device"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/qemu/image"
)

// guestFiles are a kernel and an initramfs with this program in it.
type guestFiles struct {
	kernel, initrd string
	iommu          bool   // give the guest one
	qemu           string // another QEMU than the machine's; "": none
}

// buildQEMUGuest skips what this machine cannot boot, or fails it where it must run.
func buildQEMUGuest(tb testing.TB, ctx context.Context) guestFiles {
	tb.Helper()
	for _, tool := range []string{"qemu-system-x86_64", "apt-get", "dpkg-deb", "go"} {
		_, err := exec.LookPath(tool)
		needed(tb, err, tool)
	}
	cache, err := image.DefaultCache()
	if err != nil {
		tb.Fatal(err)
	}
	k, err := image.FetchKernel(ctx, cache)
	needed(tb, err, "guest kernel")
	dir := tb.TempDir()
	initrd := filepath.Join(dir, "initramfs")
	if err := (image.Initramfs{Kernel: k, Init: vnic(tb), Modules: slices.Concat(image.VsockModules, image.VFIOModules)}).Write(initrd); err != nil {
		tb.Fatal(err)
	}
	return guestFiles{kernel: k.Boot(), initrd: initrd}
}

// needed skips a test for the lack of something, or fails it where it must run.
func needed(tb testing.TB, err error, what string) {
	tb.Helper()
	if err == nil {
		return
	}
	if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
		tb.Fatalf("%s: %v", what, err)
	}
	tb.Skipf("%s: %v", what, err)
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
	log := newLog(config.Log{Level: "error"})
	uplink, err := segment.Port(cfg.Uplink.Name)
	if err != nil {
		tb.Fatal(err)
	}
	memory := newMemoryBudgets(cfg)
	attachments, err := attach(cfg, ownSockets{log}, memory)
	if err != nil {
		tb.Fatal(err)
	}
	nic, err := device.NewNIC(cfg, device.Deps{Uplink: uplink, Attachments: attachments, Guests: guestPorts{ownDoor, memory, log}, GuestMemory: memory.count, Log: log})
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

// bootPrinted starts a guest by the line that `vnic qemu` prints, in which a vnic
// command runs, and returns what the command printed.
func bootPrinted(tb testing.TB, ctx context.Context, configPath string, g guestFiles, cid int, command ...string) ([]byte, error) {
	tb.Helper()
	dir := tb.TempDir()
	console, output := filepath.Join(dir, "console"), filepath.Join(dir, "output")
	line, err := runHere(tb, "qemu", "--qemu", cmp.Or(g.qemu, "qemu-system-x86_64"), "-c", configPath, "--guest", strconv.Itoa(cid), "--memory", "256M", "--kernel", g.kernel, "--initrd", g.initrd, fmt.Sprintf("--iommu=%t", g.iommu),
		"--append", "console=ttyS0 panic=-1 loglevel=4 random.trust_cpu=on mitigations=off no_timer_check -- "+strings.Join(command, " "),
		"--", "-nodefaults", "-no-reboot", "-serial", "file:"+console, "-serial", "file:"+output,
	)
	if err != nil {
		return nil, err
	}
	sh := exec.CommandContext(ctx, "sh", "-c", "exec "+strings.TrimSpace(stripComments(line)))
	sh.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	sh.Cancel = func() error { return syscall.Kill(-sh.Process.Pid, syscall.SIGKILL) }
	out, err := sh.CombinedOutput()
	said, rerr := os.ReadFile(output)
	if err != nil || rerr != nil || len(said) == 0 {
		log, _ := os.ReadFile(console)
		return nil, fmt.Errorf("%v, %v, %d bytes said\n%s\n%s\nconsole:\n%s", err, rerr, len(said), line, out, log)
	}
	return said, nil
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

package vnictest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/qemu"
	"github.com/falcon-vnic/vnic/qemu/image"
)

// Guest is what QEMU boots: a kernel, and an initramfs with this program in it.
type Guest struct {
	Kernel, Initrd string
	IOMMU          bool   // give the guest one
	QEMU           string // another QEMU than the machine's; "": none
}

// BuildGuest builds a guest. It skips the test if this machine cannot boot one (see Require).
func BuildGuest(tb testing.TB, ctx context.Context) Guest {
	tb.Helper()
	for _, tool := range []string{"qemu-system-x86_64", "apt-get", "dpkg-deb", "go"} {
		_, err := exec.LookPath(tool)
		Need(tb, err, tool)
	}
	cache, err := image.DefaultCache()
	if err != nil {
		tb.Fatal(err)
	}
	k, err := image.FetchKernel(ctx, cache)
	Need(tb, err, "guest kernel")
	dir := tb.TempDir()
	initrd := filepath.Join(dir, "initramfs")
	if err := (image.Initramfs{Kernel: k, Init: Program(tb), Modules: slices.Concat(image.VsockModules, image.VFIOModules)}).Write(initrd); err != nil {
		tb.Fatal(err)
	}
	return Guest{Kernel: k.Boot(), Initrd: initrd}
}

// Need is Require with an error instead of a condition.
func Need(tb testing.TB, err error, what string) {
	tb.Helper()
	Require(tb, err == nil, fmt.Sprintf("%s: %v", what, err))
}

// BootPrinted boots a guest by the command line that vnic qemu prints, with a vnic command to run
// in it, and returns what that command printed.
func BootPrinted(tb testing.TB, ctx context.Context, configPath string, g Guest, cid int, command ...string) ([]byte, error) {
	tb.Helper()
	dir := tb.TempDir()
	console, output := filepath.Join(dir, "console"), filepath.Join(dir, "output")
	line, err := Here(tb, qemu.Command(), "--qemu", cmp.Or(g.QEMU, "qemu-system-x86_64"), "-c", configPath, "--guest", strconv.Itoa(cid), "--memory", "256M", "--kernel", g.Kernel, "--initrd", g.Initrd, fmt.Sprintf("--iommu=%t", g.IOMMU),
		"--append", "console=ttyS0 panic=-1 loglevel=4 random.trust_cpu=on mitigations=off no_timer_check -- "+strings.Join(command, " "),
		"--", "-nodefaults", "-no-reboot", "-serial", "file:"+console, "-serial", "file:"+output,
	)
	if err != nil {
		return nil, err
	}
	sh := exec.CommandContext(ctx, "sh", "-c", "exec "+strings.TrimSpace(StripComments(line)))
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

func StripComments(s string) string {
	var b strings.Builder
	for l := range strings.Lines(s) {
		if !strings.HasPrefix(l, "#") {
			b.WriteString(l)
		}
	}
	return b.String()
}

// NewQEMU returns a QEMU that supports vfio-user: that of the machine, or that of tools/qemu.sh.
func NewQEMU(tb testing.TB, ctx context.Context) string {
	tb.Helper()
	out, err := exec.CommandContext(ctx, "../../../tools/qemu.sh").Output()
	Need(tb, err, "tools/qemu.sh")
	return strings.TrimSpace(string(out))
}

// Console is the output of a guest.
type Console struct {
	Out io.Reader
	All bytes.Buffer
	new int // where what was not waited for begins
}

// Until reads up to a text and returns what it read.
func (c *Console) Until(t *testing.T, what string) string {
	t.Helper()
	buf := make([]byte, 4096)
	for {
		if at := bytes.Index(c.All.Bytes()[c.new:], []byte(what)); at >= 0 {
			said := string(c.All.Bytes()[c.new : c.new+at+len(what)])
			c.new += at + len(what)
			return said
		}
		n, err := c.Out.Read(buf)
		c.All.Write(buf[:n])
		if err != nil {
			t.Fatalf("%v before %q:\n%s", err, what, &c.All)
		}
	}
}

// GuestOfTest returns a kernel and an initramfs whose init is this test's program.
func GuestOfTest(t *testing.T, ctx context.Context, modules ...string) (kernel, initrd string) {
	t.Helper()
	RequireGuests(t)
	cache, err := image.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	k, err := image.FetchKernel(ctx, cache)
	Require(t, err == nil, fmt.Sprintf("no guest kernel: %v", err))
	dir := t.TempDir()
	program := filepath.Join(dir, "init")
	initrd = filepath.Join(dir, "initramfs")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	if err := (image.Initramfs{Kernel: k, Init: program, Modules: append(modules, image.VsockModules...)}).Write(initrd); err != nil {
		t.Fatal(err)
	}
	return k.Boot(), initrd
}

// RequireDriver builds the Linux driver for the kernel of Debian's guests. Without guests it skips the test, as
// RequireGuests does.
func RequireDriver(t testing.TB) {
	t.Helper()
	RequireGuests(t)
	cache, err := image.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	k, err := image.FetchKernel(t.Context(), cache)
	Need(t, err, "guest kernel")
	MakeDriver(t, t.Context(), k.Release)
}

// madeDriver holds the paths of the kernel module and of the provider for rdma-core.
type madeDriver struct{ Module, Provider string }

// MakeDriver builds the Linux driver for a kernel, as make -C guestlib/linux does.
func MakeDriver(tb testing.TB, ctx context.Context, release string) madeDriver {
	tb.Helper()
	made := func(target string) string {
		// If make runs this test, it may have set MAKEFLAGS, by which this make would print
		// folders.
		cmd := exec.CommandContext(ctx, "make", "-s", "--no-print-directory", "-C", "../../../guestlib/linux", target, "RELEASE="+release)
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.Output()
		Require(tb, err == nil, fmt.Sprintf("make -C guestlib/linux %s: %v\n%s", target, err, &said))
		return strings.TrimSpace(string(out))
	}
	return madeDriver{made("module"), made("provider")}
}

package vnictest

import (
	"bytes"
	"context"
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Libvirt is a libvirtd of the test's own. It is in namespaces of its own (mounts, processes), in the
// network namespace of the thread that starts it, and keeps all its files in a folder of the test's.
// Its guests end with it.
type Libvirt struct {
	tb     testing.TB
	folder string
}

//go:embed libvirtd.sh
var libvirtdScript string

// StartLibvirt starts Debian's libvirtd and waits until it answers.
func StartLibvirt(tb testing.TB) *Libvirt {
	tb.Helper()
	RequireRoot(tb)
	for _, tool := range []string{"libvirtd", "virtlogd", "virsh", "qemu-system-x86_64", "unshare"} {
		_, err := exec.LookPath(tool)
		Need(tb, err, tool)
	}
	l := &Libvirt{tb: tb, folder: PublicFolder(tb, "vnic-libvirt-")}
	cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", libvirtdScript, "libvirtd.sh", l.folder)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if tb.Failed() {
			logs, _ := filepath.Glob(filepath.Join(l.folder, "log/qemu/*.log"))
			for _, log := range logs {
				b, _ := os.ReadFile(log)
				tb.Logf("%s:\n%s", log, b)
			}
			tb.Logf("libvirtd: %s", &said)
		}
	})
	Eventually(tb, "libvirtd", func() error {
		_, err := l.try("list")
		return err
	})
	return l
}

// PublicFolder makes a folder that other users can read, for as long as the test runs. Those above
// t.TempDir are closed to them.
func PublicFolder(tb testing.TB, pattern string) string {
	tb.Helper()
	folder, err := os.MkdirTemp("", pattern)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o755); err != nil {
		tb.Fatal(err)
	}
	return folder
}

// Virsh runs virsh and returns what it prints.
func (l *Libvirt) Virsh(args ...string) string {
	l.tb.Helper()
	out, err := l.try(args...)
	if err != nil {
		l.tb.Fatalf("virsh %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

func (l *Libvirt) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	uri := "qemu+unix:///system?socket=" + filepath.Join(l.folder, "run/libvirt-sock")
	out, err := exec.CommandContext(ctx, "virsh", append([]string{"--quiet", "--connect", uri}, args...)...).CombinedOutput()
	return string(out), err
}

// Define writes a domain to a file and defines it, after libvirt has checked it against its schema.
func (l *Libvirt) Define(domain string) {
	l.tb.Helper()
	file := filepath.Join(l.tb.TempDir(), "domain.xml")
	if err := os.WriteFile(file, []byte(domain), 0o600); err != nil {
		l.tb.Fatal(err)
	}
	l.Virsh("define", "--validate", file)
}

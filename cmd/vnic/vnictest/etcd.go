package vnictest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/device/netns"
)

// RequireEtcd needs Debian's etcd-server.
func RequireEtcd(t testing.TB) {
	t.Helper()
	_, err := exec.LookPath("etcd")
	Require(t, err == nil, "etcd is not installed (etcd-server)")
}

// EtcdDir returns a folder for etcd's files. It is in memory if there is such a place: etcd waits for the
// disk at each write, which takes seconds on a machine that is busy writing.
func EtcdDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "vnic-etcd-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Member is a member of an etcd that vnic fleet init configured.
type Member struct {
	t    testing.TB
	file string
	in   *netns.Space
	log  string
	cmd  *exec.Cmd
}

// StartEtcd starts the member that a file configures, in a network namespace; nil: that of the calling
// thread.
func StartEtcd(t testing.TB, file string, in *netns.Space) *Member {
	t.Helper()
	m := &Member{t: t, file: file, in: in, log: filepath.Join(t.TempDir(), "etcd.log")}
	m.Start()
	t.Cleanup(func() {
		m.Kill()
		if t.Failed() {
			b, _ := os.ReadFile(m.log)
			t.Logf("%s:\n%s", file, b[max(0, len(b)-4000):])
		}
	})
	return m
}

// Start starts a member again that was killed. It has what it had.
func (m *Member) Start() {
	m.t.Helper()
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		m.t.Fatal(err)
	}
	defer log.Close()
	m.cmd = exec.Command("etcd", "--config-file", m.file)
	m.cmd.Stdout, m.cmd.Stderr = log, log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	start := m.cmd.Start
	if m.in != nil {
		start = func() error { return m.in.Do(m.cmd.Start) }
	}
	if err := start(); err != nil {
		m.t.Fatal(err)
	}
}

// Kill ends the member at once.
func (m *Member) Kill() {
	if m.cmd.Process != nil && m.cmd.ProcessState == nil {
		_ = syscall.Kill(-m.cmd.Process.Pid, syscall.SIGKILL)
		_ = m.cmd.Wait()
	}
}

// Stop halts the member until Continue.
func (m *Member) Stop() { m.signal(syscall.SIGSTOP) }

// Continue ends what Stop did.
func (m *Member) Continue() { m.signal(syscall.SIGCONT) }

func (m *Member) signal(s syscall.Signal) {
	if err := syscall.Kill(-m.cmd.Process.Pid, s); err != nil {
		m.t.Error(err)
	}
}

// FreeEndpoint returns a URL of this machine for a member of etcd. The port after it is free, too.
func FreeEndpoint(t testing.TB) string {
	t.Helper()
	ports, err := labkit.FreePorts()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("https://127.0.0.1:%d", ports[0])
}

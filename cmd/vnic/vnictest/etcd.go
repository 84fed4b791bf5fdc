package vnictest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// RequireEtcd needs Debian's etcd-server.
func RequireEtcd(t testing.TB) {
	t.Helper()
	_, err := exec.LookPath("etcd")
	Require(t, err == nil, "etcd is not installed (etcd-server)")
}

// Member is a running member of an etcd that vnic fleet init configured.
type Member struct {
	t   testing.TB
	cmd *exec.Cmd
}

// StartEtcd starts the member that a file configures. In is the network namespace, a name of
// /run/netns; "": this one.
func StartEtcd(t testing.TB, file, in string) *Member {
	t.Helper()
	args := []string{"etcd", "--config-file", file}
	if in != "" {
		args = append([]string{"nsenter", "--net=/run/netns/" + in}, args...)
	}
	m := &Member{t: t, cmd: exec.Command(args[0], args[1:]...)}
	log, err := os.OpenFile(filepath.Join(t.TempDir(), "etcd.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	m.cmd.Stdout, m.cmd.Stderr = log, log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Kill()
		if t.Failed() {
			b, _ := os.ReadFile(log.Name())
			t.Logf("%s:\n%s", file, b[max(0, len(b)-4000):])
		}
	})
	return m
}

// Kill ends the member at once.
func (m *Member) Kill() {
	if m.cmd.ProcessState == nil {
		_ = syscall.Kill(-m.cmd.Process.Pid, syscall.SIGKILL)
		_ = m.cmd.Wait()
	}
}

// Stop halts the member until Continue: it is as if it were cut off.
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
	for range 100 {
		a, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := a.Addr().(*net.TCPAddr).Port
		b, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+1))
		_ = a.Close()
		if err == nil {
			_ = b.Close()
			return fmt.Sprintf("https://127.0.0.1:%d", port)
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("no two free ports beside each other")
	return ""
}
